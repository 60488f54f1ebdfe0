"""What a process leaves in the log's folder for others to find: how the last merge went, and why a daemon was halted.

    merge.json    written by `cdcflow merge` after each merge, read by the daemon for its metrics
    verified.json written by `cdcflow verify`: what each table was compared with, when, and through which position
    late.json     traces of commands and ends that the log could not take, until a daemon has given them to it
    halted.json   written by a daemon that ends for good, removed by the next one that starts; read by `cdcflow status`

Small JSON files, replaced as a whole. They are no state of the log: whoever cannot write or read one goes on without.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcflow.errors import CdcflowError

MERGE_NAME = "merge.json"
HALTED_NAME = "halted.json"
LATE_NAME = "late.json"
VERIFIED_NAME = "verified.json"
_LATE = {"op", "asked_by", "at_us", "details", "outcome", "reason"}


def of_merge(folder: Path) -> dict[str, Any] | None:
    """How the last merge of this log went; None: no merge has said."""
    return _read(folder / MERGE_NAME)


def write_merge(folder: Path, *, cut: int, offset: int, seconds: float, rows: int, left_out: int) -> None:
    """A merge ended well. `rows`: of the log, that it read; `left_out`: tables that are not in the cut."""
    words = {"cut": cut, "offset": offset, "seconds": round(seconds, 3), "rows": rows, "left_out": left_out}
    _write(folder / MERGE_NAME, {**words, "ended_at": round(time.time(), 3), "failed": False})


def write_merge_failure(folder: Path, error: BaseException) -> None:
    """A merge failed, or was put off. What the one before it left stays. Of an error that is none of ours only the kind
    is kept: its text may hold a row's values."""
    words: dict[str, object] = {"failed": True, "error": type(error).__name__, "reason": None}
    if isinstance(error, CdcflowError):
        words["reason"] = str(error).split("\n")[0]
    _write(folder / MERGE_NAME, {**(of_merge(folder) or {}), **words})


def of_verified(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By table, and by what it was compared with ("log", "tables"): when it was last found equal (`at`, `position`,
    `offset`, `rows`), and since when it is known to differ (`different_at`, `different`: how many keys)."""
    found = (_read(folder / VERIFIED_NAME) or {}).get("tables")
    return found if isinstance(found, dict) else {}


def write_verified(
    folder: Path, table: str, against: str, *, equal: Mapping[str, object] | None, different: int = 0
) -> None:
    """A table was compared. `equal`: what is kept of a comparison that found no difference, None: it found some, and
    when the table was last equal stays as it was."""
    tables = of_verified(folder)
    known = dict(tables.get(table, {}).get(against, {}))
    now = round(time.time(), 3)
    if equal is not None:
        known = {**equal, "at": now}
    else:
        known |= {"different_at": now, "different": different}
    tables[table] = {**tables.get(table, {}), against: known}
    _write(folder / VERIFIED_NAME, {"tables": tables})


def write_not_compared(folder: Path, table: str, against: str, columns: Sequence[str]) -> None:
    """A table was compared in all but these of the source's columns, which the copy does not have. When it was last
    equal in all columns stays as it was."""
    tables = of_verified(folder)
    known = {**tables.get(table, {}).get(against, {}), "not_compared": list(columns)}
    tables[table] = {**tables.get(table, {}), against: known}
    _write(folder / VERIFIED_NAME, {"tables": tables})


def of_halt(folder: Path) -> dict[str, Any] | None:
    """Why the last daemon of this log ended for good: `kind`, `reason`, `remedy`, `at`; None: it did not."""
    return _read(folder / HALTED_NAME)


def write_halt(folder: Path, error: Exception) -> None:
    words: dict[str, object] = {"kind": type(error).__name__, "reason": "a fault in cdcflow", "remedy": None}
    if isinstance(error, CdcflowError):  # the text of another one may hold a row's values
        words |= {"reason": str(error).split("\n")[0], "remedy": error.remedy}
    _write(folder / HALTED_NAME, {**words, "at": round(time.time(), 3)})


def clear_halt(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / HALTED_NAME).unlink(missing_ok=True)


def of_late(folder: Path) -> list[dict[str, Any]]:
    """The traces that wait for the log to be open, oldest first."""
    found = (_read(folder / LATE_NAME) or {}).get("traces")
    return [one for one in found if isinstance(one, dict) and one.keys() == _LATE] if isinstance(found, list) else []


def write_late(folder: Path, traces: Sequence[Mapping[str, Any]]) -> None:
    if traces:
        _write(folder / LATE_NAME, {"traces": list(traces)})
    else:
        with contextlib.suppress(OSError):
            (folder / LATE_NAME).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, words: Mapping[str, object]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a folder that is another machine's, or read-only: nobody hears of it
        beside.write_text(json.dumps(words), encoding="utf-8")
        beside.replace(path)
