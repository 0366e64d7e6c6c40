"""Bookmark stores."""
