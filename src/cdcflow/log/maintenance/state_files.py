"""Files in the log's folder with a process's last state, such as the result of the last merge, or why a daemon was
halted.

    merge.json    written by `cdcflow merge` after each merge, read by the daemon for its metrics
    merges.json   the latest cuts that such merges published, for the daemon's page
    targets/      a file for each target, written after each delivery to it, and the lock of the process that delivers
    verified.json written by `cdcflow verify`: what each table was compared with, when, and through which position
    late.json     records of commands and exits that could not be written to the log, until a daemon writes them
    halted.json   written by a daemon that ends permanently, removed by the next one; read by `cdcflow status`

They are small JSON files, replaced as a whole. The log does not need them: a process that cannot write or read one
continues without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cdcflow.errors import CdcflowError

MERGE_NAME = "merge.json"
MERGES_NAME = "merges.json"
HALTED_NAME = "halted.json"
LATE_NAME = "late.json"
VERIFIED_NAME = "verified.json"
TARGETS_NAME = "targets"
EXCLUDED_MAX = 50
"""How many excluded tables are stored with their reasons; the number of all of them is stored as well."""
_LATE = {"op", "asked_by", "at_us", "details", "outcome", "reason"}


def of_merge(folder: Path) -> dict[str, Any] | None:
    """Return the result of the last merge of this log; `None` if no merge has written one."""
    return _read(folder / MERGE_NAME)


def write_merge(
    folder: Path,
    *,
    cut: int,
    offset: int,
    seconds: float,
    rows: int,
    excluded: Mapping[str, str],
    warned: int = 0,
    quarantined: int = 0,
) -> None:
    """Record a merge that succeeded. `rows`: how many rows of the log it read; `excluded`: tables that are not in the
    cut, each with the reason and what to do. `warned` and `quarantined`: rows that break contracts."""
    words = {"cut": cut, "offset": offset, "seconds": round(seconds, 3), "rows": rows, "left_out": len(excluded)}
    words |= {"warned_rows": warned, "quarantined_rows": quarantined}
    reasons = dict(list(excluded.items())[:EXCLUDED_MAX])
    _write(folder / MERGE_NAME, {**words, "excluded": reasons, "ended_at": round(time.time(), 3), "failed": False})


def write_merge_failure(folder: Path, error: BaseException) -> None:
    """Record a merge that failed or was postponed. The fields of the last successful merge stay.

    For an error that is not cdcflow's only the type is stored, because its text may hold a row's values.
    """
    words: dict[str, object] = {"failed": True, "error": type(error).__name__, "reason": None}
    if isinstance(error, CdcflowError):
        words["reason"] = str(error).split("\n")[0]
    _write(folder / MERGE_NAME, {**(of_merge(folder) or {}), **words})


def of_merges(folder: Path, warehouse: str) -> list[dict[str, Any]] | None:
    """Return the latest cuts that merges of this log have published in a warehouse, latest first; `None` if no merge
    has written them."""
    found = _read(folder / MERGES_NAME) or {}
    latest = found.get("latest")
    return latest if isinstance(latest, list) and found.get("warehouse") == warehouse else None


def write_merges(folder: Path, warehouse: str, latest: Sequence[Mapping[str, Any]]) -> None:
    """Record the cuts that merges have published, latest first."""
    _write(folder / MERGES_NAME, {"warehouse": warehouse, "latest": list(latest)})


def target_file(folder: Path, name: str, kind: str) -> Path:
    """Return the path of a file of the target with this name, which may hold any characters. `kind`: the file's
    suffix."""
    return folder / TARGETS_NAME / f"{quote(name, safe='')}.{kind}"


def of_target(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the result of the last delivery to a target; `None` if no delivery has written one."""
    return _read(target_file(folder, name, "json"))


def write_target(
    folder: Path,
    name: str,
    *,
    offset: int,
    seconds: float,
    rows: int,
    stopped: Mapping[str, Mapping[str, str]],
    waiting: Collection[str],
) -> None:
    """Record a delivery that has brought a target to this offset of the log. `rows`: how many rows it applied and
    deleted.

    Not all tables need be at that offset. `stopped`: tables that need an operator, each with `reason` and `remedy`;
    `waiting`: tables whose rows are not all in the log yet.
    """
    known = (of_target(folder, name) or {}).get("stopped") or {}
    now = round(time.time(), 3)
    some = list(stopped.items())[:EXCLUDED_MAX]
    words: dict[str, object] = {"offset": offset, "seconds": round(seconds, 3), "rows": rows, "ended_at": now}
    words["stopped"] = {table: {**why, "since": known.get(table, {}).get("since", now)} for table, why in some}
    words |= {"stopped_tables": len(stopped), "waiting_tables": len(waiting), "failed": False}
    _write_target(folder, name, words)


def write_target_failure(folder: Path, name: str, error: BaseException) -> None:
    """Record a delivery that failed. The fields of the last successful one stay. For an error that is not cdcflow's
    only the type is stored."""
    known = of_target(folder, name) or {}
    words: dict[str, object] = {"failed": True, "error": type(error).__name__, "reason": None, "remedy": None}
    if isinstance(error, CdcflowError):
        words |= {"reason": str(error).split("\n")[0], "remedy": error.remedy}
    since = known.get("failed_since") if known.get("failed") else None
    _write_target(folder, name, {**known, **words, "failed_since": since or round(time.time(), 3)})


def _write_target(folder: Path, name: str, words: Mapping[str, object]) -> None:
    if folder.is_dir():
        with contextlib.suppress(OSError):
            (folder / TARGETS_NAME).mkdir(mode=0o750, exist_ok=True)
        _write(target_file(folder, name, "json"), words)


def of_verified(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of comparisons, by table, and by what it was compared with ("log", "tables").

    A result has the facts about when the table was last found equal (`at`, `position`, `offset`, `rows`), and since
    when it is known to differ (`different_at`, `different`: how many keys).
    """
    found = (_read(folder / VERIFIED_NAME) or {}).get("tables")
    return found if isinstance(found, dict) else {}


def write_verified(
    folder: Path, table: str, against: str, *, equal: Mapping[str, object] | None, different: int = 0
) -> None:
    """Record that a table was compared. `equal`: the fields to store, if the comparison found no difference.

    `None` if it found differences: the time when the table was last equal is kept.
    """
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
    """Record that a table was compared without these columns of the source, which the copy does not have.

    The time when it was last equal in all columns is kept.
    """
    tables = of_verified(folder)
    known = {**tables.get(table, {}).get(against, {}), "not_compared": list(columns)}
    tables[table] = {**tables.get(table, {}), against: known}
    _write(folder / VERIFIED_NAME, {"tables": tables})


def of_halt(folder: Path) -> dict[str, Any] | None:
    """Return why the last daemon of this log ended permanently: `kind`, `reason`, `remedy`, `at`; `None` if it
    did not."""
    return _read(folder / HALTED_NAME)


def write_halt(folder: Path, error: Exception) -> None:
    words: dict[str, object] = {"kind": type(error).__name__, "reason": "a fault in cdcflow", "remedy": None}
    if isinstance(error, CdcflowError):  # other errors' texts may hold a row's values
        words |= {"reason": str(error).split("\n")[0], "remedy": error.remedy}
    _write(folder / HALTED_NAME, {**words, "at": round(time.time(), 3)})


def clear_halt(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / HALTED_NAME).unlink(missing_ok=True)


def of_late(folder: Path) -> list[dict[str, Any]]:
    """Return the records of commands and exits that a daemon still has to write to the log, oldest first."""
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # another machine's or a read-only folder: ignored
        temporary.write_text(json.dumps(words), encoding="utf-8")
        temporary.replace(path)
