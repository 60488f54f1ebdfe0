"""Imports everything that a daemon needs. The process that daemons are forked from imports this module.

That includes what the main program of a run imports: multiprocessing otherwise imports it again in each daemon, which
took 0.2 s of processor time, more than most daemons need for their work.
"""

from __future__ import annotations

import gc
import importlib

MODULES = (
    "tests.ddlfuzz.jobs",
    "cdcflow.sources.mysql.source",
    "cdcflow.sources.postgres.source",
)

for name in MODULES:
    importlib.import_module(name)
# Otherwise a collection in a daemon writes to the pages of all these objects, and the kernel copies them.
gc.collect()
gc.freeze()

__all__ = ["MODULES"]
