"""haclient."""
