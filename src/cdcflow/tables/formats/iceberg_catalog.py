"""Repair the catalog of a warehouse in a folder after a power cut has left a table's metadata torn.

    iceberg_tables    metadata_location ──▶ 00042-….metadata.json     0 bytes, or missing
                      previous_…        ──▶ 00041-….metadata.json     counts instead

SQLite makes its own file durable with each commit, but a metadata file that it names may not be durable, nor the
manifests and the data of its snapshot. Published versions had been synced before, so a commit with a torn file was not
published, and it counts as never made.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog

from cdcflow.tables.formats.hadoop_checksums import matches_checksums

BUSY_S = 60
_NUMBER = re.compile(r"(\d+)-[^/]*\.metadata\.json")
_WHERE = "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"

_log = structlog.get_logger()


def step_back(
    catalog: Path, name: str, table: tuple[str, str], is_known: Callable[[str], bool] = lambda _: False
) -> bool:
    """Set the catalog named `name` to the latest whole metadata of a table. Return whether the files of its snapshots
    have to be checked, too. Only for a merge that holds the warehouse's lease.

    `is_known` returns whether this process has read or written the metadata at a location. Such metadata need not be
    checked: it has every snapshot that the table keeps, and a power cut would have ended the process.
    """
    if not catalog.exists():
        return False
    key = (name, *table)
    with closing(sqlite3.connect(catalog, timeout=BUSY_S)) as opened, opened:
        try:
            found = opened.execute(
                f"SELECT metadata_location, previous_metadata_location FROM iceberg_tables {_WHERE}",  # noqa: S608  cdcflow's own
                key,
            ).fetchone()
        except sqlite3.OperationalError:  # a catalog without any table yet
            return False
        if found is None or found[0] is None or is_known(found[0]):
            return False
        if is_whole(found[0]):
            return True
        before = _before(found[0], found[1])
        if before is None:
            return False  # nothing is whole: the reader reports it
        _log.warning("a torn commit is set aside, its range is merged again", table=".".join(table))
        opened.execute(
            f"UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = NULL {_WHERE}",  # noqa: S608
            (before, *key),
        )
        return True


def is_whole(location: str) -> bool:
    """Return whether a table's metadata file exists, its JSON is complete, and its checksums match."""
    try:
        complete = isinstance(json.loads(_path(location).read_bytes()), dict)
    except (FileNotFoundError, ValueError):
        return False
    return complete and matches_checksums(_path(location))


def has_file(location: str, size: int | None = None) -> bool:
    """Return whether a file that a snapshot names exists, with this size in bytes, and matches its checksums."""
    path = _path(location)
    return path.exists() and size in (None, path.stat().st_size) and matches_checksums(path)


def _before(torn: str, previous: str | None) -> str | None:
    """Return the location of the latest whole metadata before a torn one; `None` if no earlier metadata is whole."""
    if previous is not None and is_whole(previous):
        return previous
    place, prefix = _path(torn).parent, torn.rpartition("/")[0]
    numbered = {name: int(found[1]) for name in _names(place) if (found := _NUMBER.fullmatch(name))}
    last = numbered.get(_path(torn).name, max(numbered.values(), default=0) + 1)
    older = sorted((number, name) for name, number in numbered.items() if number < last)
    return next((f"{prefix}/{name}" for _, name in reversed(older) if is_whole(f"{prefix}/{name}")), None)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _path(location: str) -> Path:
    return Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)
