"""Pictures of the paper, and of its measurements."""
