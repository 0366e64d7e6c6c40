"""Recovery point adapters."""
