"""Clients for web applications; the frameworks are not imported."""
