"""The merge: it keeps current-state tables and publishes cuts over them, for every engine and table format.

job         folds the new changes of a log into tables, then publishes one cut
port        what an engine implements: cdcflow.spark, cdcflow.local
formats     what each table format supports, and how to recognize its tables
changes     the view of changes that is reduced
segments    which files of the log a merge reads
cut         a published cut
moments     finds the published cut for a past point in time
views       SQL that shows a cut to readers without cdcflow
upkeep      maintenance: expires old cuts and the files that only they need
paths       the layout of a warehouse
"""
