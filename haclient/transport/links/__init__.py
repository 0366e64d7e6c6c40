"""Byte streams to a server: TCP, unix, TLS, zlib, memory; and how each is opened."""
