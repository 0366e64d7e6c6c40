"""What a client shows of itself: its last frames, and its numbers for exporters and traces."""
