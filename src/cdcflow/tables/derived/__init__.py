"""Derived tables: which queries they may have, and which of their rows a change of an input concerns. Pure."""
