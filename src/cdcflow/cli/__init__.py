"""The command line: one module per command, and the common output for users and machines; it starts no thread.

Contains options, output, exit texts. Never here: anything a library user would need; `cdcflow.wiring` creates concrete
sources, logs and captures, and Spark is imported only by the commands that need it.
"""
