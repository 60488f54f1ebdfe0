"""The demo: a real database that is being written to, captured into Delta tables, with a proof at the end.

`flights` is its content, `databases` what it asks of a database (`postgres` and `mysql` are two of them, `opening`
finds which), `servers` starts one, `writer` is the second process that keeps changing it, `proof` the comparison of
source and target, `screen` what one sees meanwhile, `demo_run` what happens in which order. Needs the extra
`cdcflow[demo]`.
"""
