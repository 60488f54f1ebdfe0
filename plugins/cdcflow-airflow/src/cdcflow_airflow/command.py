"""The command `cdcflow` and its JSON, as docs/commands.md of cdcflow describes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

FINDINGS = 1
"""The exit code of a command that did its work and found something: a table that is excluded, rows that differ."""
NOTHING = 78
"""The exit code when settings are wrong or an operator must act. `cdcflow cuts` also has it before the first cut."""


class CommandFailed(Exception):
    """The command did not do its work. The text is what it printed: it holds no secret and no value of a row."""

    def __init__(self, arguments: Sequence[str], code: int, text: str) -> None:
        super().__init__(f"cdcflow {arguments[0]} ended with {code}:\n{text.strip()}")
        self.code = code


def run(program: str, arguments: Sequence[str], *, accepted: Collection[int] = (0,)) -> tuple[int, Any]:
    """Run a command of cdcflow with `--json`. Return its exit code, and what it printed.

    Raises:
        CommandFailed: the exit code is not accepted.
    """
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise CommandFailed(arguments, done.returncode, done.stderr or done.stdout)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None


def latest_cut(program: str, config: str) -> dict[str, Any] | None:
    """The latest published cut with its tables; None if there is none yet.

    Raises:
        CommandFailed: it cannot be read.
    """
    try:
        _, cut = run(program, ["cuts", "--tables", "--config", config])
    except CommandFailed as error:
        if error.code == NOTHING and "cut was published" in str(error):
            return None
        raise
    return dict(cut)


def missing_from(cut: dict[str, Any] | None, since: datetime | None, tables: Collection[str]) -> str | None:
    """Return what a cut lacks to show these tables at this time, or later, as text; None if it lacks nothing.

    `tables` empty: all tables of the pipeline, so a table that is excluded from the cut is missing, too.
    """
    if cut is None:
        return "no cut is published yet"
    shown = datetime.fromisoformat(cut["commit_clock"].replace("Z", "+00:00"))
    if since is not None and shown < (since if since.tzinfo else since.replace(tzinfo=UTC)):
        return f"cut {cut['cut']} shows the source at {cut['commit_clock']}, which is before {since.isoformat()}"
    for name in sorted(tables or {*cut["tables"], *cut["left_out"]}):
        if name in cut["left_out"]:
            return f"{name} is not in cut {cut['cut']}: {cut['left_out'][name]}"
        if name not in cut["tables"]:
            return f"cut {cut['cut']} has no table {name}"
        if not cut["tables"][name]["complete"]:
            return f"{name} does not have all of its rows in cut {cut['cut']}"
    return None
