"""Compiled decoders of the PostgreSQL source, in Cython. Optional: every caller of one also has a plain one.

A compiled decoder must return what the plain module returns, errors included. It refuses rare or invalid input; the
plain module, which is the reference, then decodes it or raises the error.
"""
