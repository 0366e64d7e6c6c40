"""What a client shows of itself: its last frames, numbers, health and reports."""
