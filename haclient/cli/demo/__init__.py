"""`haclient demo`: kill brokers and a subscriber in mid-stream, and account for every message."""

from haclient.cli.demo.run import demo

__all__ = ["demo"]
