"""Compiled decoders of the MySQL source, in Cython. Optional: each has a plain module beside it.

It must give what the plain module gives, errors included. What is rare or wrong it leaves to the plain module,
which is the reference: a column's values, or all of a batch.
"""
