"""`cdcflow move`, which kills itself at a step: `killed_move.py POINT OPTIONS…`.

`POINT` is `before:NAME` or `after:NAME` of `STEPS`; it dies at the first call.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.kill.budgeted_daemon import arm

from cdcflow.cli.app import main as command
from cdcflow.sinks.files import recovery
from cdcflow.sinks.files.log import FileLog
from cdcflow.sources.mysql.marks import WrittenMarks
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.sources.postgres import publication, slot
from cdcflow.sources.postgres.source import PostgresSource

STEPS: dict[str, tuple[Any, str]] = {
    "publication": (publication, "ensure"),
    "old slot": (slot, "drop"),
    "slot": (slot, "create"),
    "cut": (FileLog, "cut"),
    "sync": (FileLog, "sync"),
    "identity": (PostgresSource, "identity"),
    "marks": (WrittenMarks, "ensure"),
    "identity of MySQL": (MySQLSource, "identity"),
    "log.json": (recovery, "write_file"),
}

if __name__ == "__main__":
    arm(sys.argv[1], STEPS)
    sys.argv = ["cdcflow", "move", *sys.argv[2:]]
    command()
