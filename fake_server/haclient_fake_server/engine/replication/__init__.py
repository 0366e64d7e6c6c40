"""Replication: sending the log to other instances, taking in theirs, waiting for them."""
