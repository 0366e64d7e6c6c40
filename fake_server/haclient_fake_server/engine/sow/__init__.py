"""The state of the world: its tables, queries of them, and delta publishes."""
