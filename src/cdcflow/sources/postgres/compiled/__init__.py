"""Compiled decoders of the PostgreSQL source, in Cython. Optional: whoever uses one has a plain one too.

It must give what the plain module gives, errors included. What is rare or wrong it declines, and the plain
module, which is the reference, answers for it.
"""
