"""The disk seam and what stands on it."""
