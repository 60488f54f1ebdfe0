"""The merge as a job, the same for every engine: what to read, commit by commit, cuts, the live view, maintenance.

job         folds the new changes of a log into tables, then publishes one cut
positions   the position of each table, and what it needs of the log
changes     the view of changes that is reduced
`live`      all tables as of the latest sealed cut, without a merge
moments     finds the published cut for a past point in time
views       SQL that shows a cut to readers without cdcflow
maintenance expires old cuts and the files that only they need
"""
