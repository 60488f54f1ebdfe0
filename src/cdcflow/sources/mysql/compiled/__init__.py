"""Compiled decoders of the MySQL source, in Cython. Optional: each has a plain module next to it.

A compiled decoder must return what the plain module returns, including errors. It leaves rare or wrong input (a
column's values, or a whole batch) to the plain module, which is the reference.
"""
