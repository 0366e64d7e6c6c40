"""What a subscription has received and discarded: pure."""
