"""The version of cdcflow, for everything that states it: no other module needs the package itself for it."""

__version__ = "0.1.0"
