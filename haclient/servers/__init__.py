"""Which server a client connects to, when, and with which credentials."""
