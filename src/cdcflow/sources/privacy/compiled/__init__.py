"""Compiled kernels of column policies, in Cython, over OpenSSL. Optional: every caller of one also has a plain one.

A compiled kernel must return what the plain one returns, byte for byte: either may have computed a stored value.
"""
