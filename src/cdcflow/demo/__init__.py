"""The demo: a real database under a changing workload, captured into Delta tables, with a proof at the end.

`flights` is its content, `databases` what it needs of a database (`postgres` and `mysql` are two of them,
`source_choice` chooses one), `servers` starts one, `writer` is the second process that keeps changing it, `proof` the
comparison of source and target, `screen` the display, `demo_run` the order of steps. Needs the extra `cdcflow[demo]`.
"""
