"""Change logs that are written by hand, and independent readers of them."""
