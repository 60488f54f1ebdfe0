"""A fleet: what its members publish, where, and what that amounts to: one row for each pipeline."""
