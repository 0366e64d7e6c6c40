"""Publish stores."""
