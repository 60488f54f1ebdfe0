"""Servers of the demo's own: a program that is installed here, started in a temporary directory, gone afterwards.

`postgres`, `mysql` and `kafka` each find their server's program and start it; `processes` has what they share,
`cached` knows the folder that the make targets fetch programs into, and `installed` looks for all that a demo needs
before it begins. Nothing here fetches anything.
"""
