"""Faults, processes and clusters to test against."""
