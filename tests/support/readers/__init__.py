"""What other programs read of our tables."""
