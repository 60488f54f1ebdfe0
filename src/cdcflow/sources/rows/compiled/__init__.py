"""Compiled kernels of row rules, in Cython. Optional: every caller of one also has a plain one.

A compiled kernel must return what the plain one returns. It leaves rare or invalid values to the plain one, which is
the reference.
"""
