"""Databases that are read, one package each. They do not know the sinks, nor each other."""
