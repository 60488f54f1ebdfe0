"""Current-state tables: merges update them and publish cuts over them; comparisons check them against the source.

port        what an engine implements: cdcflow.spark, cdcflow.tables.local
cut         a published cut
segments    which files of the log a merge reads
paths       the layout of a warehouse
durable     makes the files of a warehouse durable
"""
