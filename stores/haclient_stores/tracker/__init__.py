"""The state of a subscription: what it has received and discarded. Pure."""
