"""The command line: one module a command, and how all of them speak to a person or a machine.

Lives here: options, output, exit codes, the demo. Never here: anything a library user would miss; concrete sources,
logs and captures come from `cdcflow.wiring`, and Spark is imported only by the commands that need it.
"""
