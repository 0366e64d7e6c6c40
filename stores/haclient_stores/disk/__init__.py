"""The disk seam, ownership, durability, and the rule for checksummed logs."""
