"""Ready-made pieces for web frameworks, none of which they import."""
