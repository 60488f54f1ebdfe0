"""A source and its copy, compared by the command."""
