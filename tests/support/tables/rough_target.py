"""A kind of target that fails in a chosen way at a chosen step, for tests: `kind: rough`.

    order.txt    a step and what happens there, once: "committed kill"

It is the package of `cdcflow new target`, with steps.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.plugins import install, install_target_of_the_template

from cdcflow.config import plugins

STEPS = ("opened", "placed", "begun", "written", "committed")
"""Where something may happen: after the target was opened, after its places were read, before a change, within its
transaction after its rows, and after its commit."""

CODE = """
import os
import signal
import time
from pathlib import Path

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.ports import TargetPlugin, TargetSettings
from cdcflow_mydb.tables import MydbTables


class RoughSettings(TargetSettings):
    file: Path
    order: Path


def happen(order, step, table=""):
    try:
        chosen, what, *tables = order.read_text().split()
    except (OSError, ValueError):
        return
    if chosen != step or (tables and table not in tables):
        return
    if what == "kill":
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        order.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "hang":
        time.sleep(600)
    if what == "eat":
        held = []
        while True:
            held.append(bytearray(b"x") * (8 << 20))
            time.sleep(0.01)
    if what == "refuse":
        raise ConfigurationError("no room for this table", remedy="make room")
    if what == "away":
        raise SinkUnavailable("rough does not answer")
    if what == "fault":
        raise ValueError("c4n4ry-v4lue")


class RoughTables(MydbTables):
    def __init__(self, settings):
        super().__init__(settings.file)
        self._order = settings.order
        happen(self._order, "opened")

    def places(self):
        found = super().places()
        happen(self._order, "placed")
        return found

    def apply(self, change):
        happen(self._order, "begun", str(change.table.id))
        super().apply(change)
        happen(self._order, "committed")

    def _write(self, table, rows):
        super()._write(table, rows)
        happen(self._order, "written")


plugin = TargetPlugin(ports=1, settings=RoughSettings, open=RoughTables)
"""


def install_rough_target(folder: Path) -> list[str]:
    """Write the package into a folder. Returns what must be on the path."""
    paths = install_target_of_the_template(folder)
    return [
        *paths,
        str(install(folder / "rough", "cdcflow-rough", {"rough": "cdcflow_rough:plugin"}, CODE, plugins.TARGETS)),
    ]
