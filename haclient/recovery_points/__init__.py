"""Adapters that keep the recovery points of a bookmark store elsewhere."""
