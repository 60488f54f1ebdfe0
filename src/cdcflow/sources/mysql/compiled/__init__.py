"""Compiled decoders of the MySQL source, in Cython. Optional: each has a plain module next to it.

It must return what the plain module returns, including errors. It leaves rare or wrong input to the plain module,
which is the reference: a column's values, or a whole batch.
"""
