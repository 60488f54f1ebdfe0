"""DDL against a captured database, drawn from seeds: `make fuzz-ddl`.

    seed ──draw──▶ Case: settings and steps ──execute──▶ a server, a daemon, and at the end
                        │                                  the log folded by column number == SELECT *
                        └──◀──shrink── a failure           (or a known stop that its own remedy ended)

A step is a word with arguments (`add_column public.t0 c4 int random`). Its kind determines what must hold in the model
for it to mean anything; a step whose condition does not hold is skipped. So steps can be taken away from a case and the
rest still runs, which is all that shrinking needs.

`model.py` (pure) what tables and columns there are. `kinds.py`, `rows.py`, `columns.py`, `keys.py`, `tables.py`,
`servers.py`, `clauses.py`, `alter_clauses.py` the kinds. `draw.py` (pure) a case of a seed. `oracle.py` (pure) a log as
current rows. `kept.py` what PostgreSQL's log has of dropped tables. `shrink.py` (pure). `jobs.py` runs several at once.
`execute.py` runs a case, with `daemon.py` (a process that can be killed; `preloaded.py` is imported where it is forked)
and `dialects.py` (each server's queries). `cases/` what was found, shrunk; `open` in a case's first line: not fixed
yet.
"""
