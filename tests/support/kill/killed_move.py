"""`cdcflow move`, which kills itself at a step: `python -m tests.support.kill.killed_move POINT OPTIONS…`.

`POINT` is `before:NAME` or `after:NAME` of `STEPS`; it dies at the first call.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cdcflow.daemon.lean import without_luxuries

if __name__ == "__main__":
    without_luxuries()  # pandas takes a third of a start

from tests.support.kill.budgeted_daemon import arm
from tests.support.polling import PATIENCE_S

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


def kill_move_at(point: str, *options: str) -> None:
    """Run a move until it has killed itself at this point."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.kill.killed_move", point, *options],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr


if __name__ == "__main__":
    arm(sys.argv[1], STEPS)
    sys.argv = ["cdcflow", "move", *sys.argv[2:]]
    command()
