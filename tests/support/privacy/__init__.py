"""Tables with values that must not leave their source, and a search for them in everything that was written."""
