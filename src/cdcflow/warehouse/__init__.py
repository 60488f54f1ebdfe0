"""The merge: current-state tables and the cuts over them, whatever engine and format there is.

job         what is new in a change log, folded into tables, then published as one cut
port        what it asks of an engine: cdcflow.spark, cdcflow.local
formats     what tables hold, and how a warehouse tells its own
changes     the view of changes that is reduced
segments    which files of the log a merge reads
cut         a published cut
moments     which cut shows a moment of the past
views       SQL that shows a cut to people without cdcflow
upkeep      old cuts expire, with what only they needed
paths       where things lie
"""
