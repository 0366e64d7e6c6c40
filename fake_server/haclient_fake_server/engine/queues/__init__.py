"""Message queues: views over the log whose messages are leased to consumers and then removed."""
