"""The demo: a real database that is being written to, captured into Delta tables, with a proof at the end.

`flights` is the database and its content, `writer` the second process that keeps changing it, `proof` the comparison
of source and target, `screen` what one sees meanwhile, `story` what happens in which order. Needs the extra
`cdcflow[demo]`.
"""
