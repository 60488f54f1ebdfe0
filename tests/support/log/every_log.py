"""The format page's reader over every log that a test leaves: `pytest --every-log` (`make test-format`).

A log that cdcflow itself finds damaged, or of another version than the page's, is left alone, and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.log.page_reader import log_rows

from cdcflow.errors import CdcflowError
from cdcflow.log.read.folder import FolderReader

BYTES_MAX = 32 << 20
LOG_VERSION = 2
_OWN = ("_op", "_unchanged", "_before", "_txn")


def read_logs(folder: Path) -> Counter[str]:
    """Read each log below a folder twice, and print how many logs and rows were found.

    Raises:
        AssertionError: the page's reader finds other rows than cdcflow does.
    """
    found: Counter[str] = Counter()
    for told in sorted(folder.rglob("log.json")):
        root = told.parent
        if (root / "segments").is_dir():
            found += _read(root)
    return found


def _read(root: Path) -> Counter[str]:
    if sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) > BYTES_MAX:
        return Counter({"too large": 1})
    try:
        if json.loads((root / "log.json").read_text())["version"] != LOG_VERSION:
            return Counter({"another version": 1})
        reader = FolderReader(root)
        if not reader.check(deep=True).is_whole:
            return Counter({"damaged": 1})
        own = dict(_own_rows(reader))
    except (CdcflowError, ValueError, KeyError):
        return Counter({"damaged": 1})
    except OverflowError:
        return Counter({"with dates beyond Python's": 1})
    except (RuntimeError, StopIteration):
        return Counter({"made by hand without transactions": 1})
    read = {offset: (name, _plain(row)) for offset, name, row in log_rows(root)}
    assert read.keys() == own.keys(), f"{root}: offsets {sorted(read.keys() ^ own.keys())[:5]}"
    for offset, row in own.items():
        assert read[offset] == row, f"{root}: row {offset}"
    return Counter({"logs": 1, "rows": len(own)})


def _own_rows(reader: FolderReader) -> Any:
    for table, _version, rows in reader.read_rows():
        names = [c.name for c in table.columns]
        for row in rows.select([n for n in (*names, "_offset", *_OWN) if n in rows.column_names]).to_pylist():
            yield row["_offset"], (table.id.name, _plain(row))


def _plain(row: dict[str, Any]) -> dict[str, str]:
    """A row as texts, so that NaN is equal to itself; only values are compared."""
    return {name: repr(value) for name, value in row.items() if name[0] != "_" or name in _OWN}


__all__ = ["read_logs"]
