"""The journal: its record format, and its files on disk."""
