"""The demo's private servers: an installed program, started in a temporary directory, gone afterwards.

`postgres`, `mysql` and `kafka` each find their server's program and start it; `processes` has what they share, `cached`
knows the folder that the make targets fetch programs into, and `installed` checks for all that a demo needs before it
begins. Nothing here fetches anything.
"""
