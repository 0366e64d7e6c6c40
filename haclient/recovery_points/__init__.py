"""Where a subscription goes on after a kill, kept elsewhere, and where a publisher goes on."""
