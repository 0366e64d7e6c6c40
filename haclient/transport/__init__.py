"""A client at work: the shells that send, wait and call, on trio."""
