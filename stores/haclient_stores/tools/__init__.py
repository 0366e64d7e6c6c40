"""Tools that look at store files."""
