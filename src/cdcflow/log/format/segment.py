"""Sealed segments: a run of the log as plain Parquet, and the manifest that makes it count.

<log>/segments/<first offset>-<last offset>/
    segment.json                    this module's `Segment`; written last
    transactions.parquet            one row per transaction
    <schema.table>.<version>.parquet  rows of one table shape, ascending by _offset
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.log.format.framing import other_version
from cdcflow.model.position import Checkpoint

SEGMENT_VERSION = 5
WITHOUT_BACKFILLS = 4
"""The version written for a segment without `backfills`, so that an older cdcflow can read it."""
OLDER_VERSIONS = (2, 3, WITHOUT_BACKFILLS)
"""Older versions that can be read, too: 2 has neither `key_runs` nor `stands_for` and `seams`; 3 is a compacted
segment without `key_runs`; 4 has no `backfills`."""

Facts = Mapping[str, Mapping[str, object]]
"""The backfill facts of tables, keyed by table name."""
_FACTS = ("state", "generation", "since", "whole_since", "gap", "missed")

TRANSACTIONS_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),  # first_offset - 1 if it has no rows
        pa.field("position", pa.string(), nullable=False),
        pa.field("xid", pa.uint64(), nullable=False),
        pa.field("commit_ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("commit_clock", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("origin", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One Parquet file of a segment. `table` is `Table.to_json()`, or `None` for the transactions.

    `version` numbers a table's shapes from 1, in the order in which they appeared in the log. `key_min` and `key_max`
    are the first key column's bounds as text if its order is the same everywhere (integers, dates, timestamps),
    otherwise `None`.

    `key_runs`: ranges [first, last] that contain the first key column's values, disjoint and ascending, as text like
    the bounds. They exist only if no value is NULL and each is in one row only; `None`: unknown (see `keyruns`).

    `ops` counts rows by `_op`; `partial` counts rows with `_unchanged` set, deletes aside; `moved` counts `c` rows that
    carry `_before` (key changes).
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    table: dict[str, object] | None = None
    version: int = 0
    first_offset: int = 0
    last_offset: int = 0
    key_min: str | None = None
    key_max: str | None = None
    ops: dict[str, int] | None = None
    partial: int = 0
    moved: int = 0
    key_runs: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def of(cls, value: dict[str, Any]) -> SegmentFile:
        """Return an entry of a manifest's `files`."""
        runs = value.get("key_runs")
        return cls(**{**value, "key_runs": runs if runs is None else tuple((first, last) for first, last in runs)})


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment's manifest. A segment begins where the previous one ended, and ends at a cut.

    Offsets are inclusive. A segment without rows (it has only progress) has `last_offset = first_offset - 1`; the file
    sink never writes one.

    - `checkpoint`: the JSON of the `Checkpoint` at the segment's last cut.
    - `previous`: the sha256 of the previous segment's segment.json ("" for the first segment), and `previous_offset`
      that segment's first offset. A reader walks back from the latest segment with them, and need not list all.
    - `xid_min`, `xid_max`: bounds of the low 32 bits of its source's transactions' ids; `xid_newest`: the latest id
      since the log began. None if there were no such transactions. Ids wrap around: of two, the later one is less than
      2^31 ahead. A search for an id skips segments by them.

    The last three are only in a segment that `compaction` built from several:

    - `stands_for`: the hash of the latest manifest that it replaced. The next segment's `previous` still is that hash.
    - `seams`: the cuts at which the other replaced segments ended, each with its last offset. A merge may have stopped
      at any of them.
    - `backfills`: for each of these offsets, the backfill facts of the checkpoint there, as far as they differ from
      those at the next one (None: the table had no facts).
    """

    log_id: str
    first_offset: int
    last_offset: int
    first_transaction: int
    last_transaction: int
    first_cut: int
    last_cut: int
    files: tuple[SegmentFile, ...]
    checkpoint: dict[str, object]
    previous: str
    epoch: int
    previous_offset: int | None = None
    xid_min: int | None = None
    xid_max: int | None = None
    xid_newest: int | None = None
    version: int = SEGMENT_VERSION
    stands_for: str = ""
    seams: tuple[tuple[int, int], ...] = ()
    backfills: tuple[tuple[int, dict[str, dict[str, object] | None]], ...] = ()

    @property
    def transactions_file(self) -> SegmentFile:
        """The file with the segment's transactions."""
        return next(f for f in self.files if f.table is None)

    @property
    def size(self) -> int:
        """The bytes of all files of the segment."""
        return sum(f.bytes for f in self.files)

    def offset_of(self, cut: int) -> int | None:
        """Return the last offset of a cut at which a segment ended: this one, or one that it replaced. `None` if no
        such segment ended at that cut."""
        return dict((*self.seams, (self.last_cut, self.last_offset))).get(cut)

    def ends_around(self, offset: int) -> tuple[int, int]:
        """Return the two ends nearest to an offset of this segment, among its own and those of the segments that it
        replaced: the last one before the offset, and the first one at or after it."""
        ends = [self.first_offset - 1, *(end for _, end in self.seams), self.last_offset]
        at = bisect_left(ends, offset, 1, len(ends) - 1)
        return ends[at - 1], ends[at]

    def facts_at(self, end: int) -> Facts:
        """Return the backfill facts in the checkpoint at an end from `ends_around`."""
        found = dict(facts_of(self.checkpoint))
        for offset, before in reversed(self.backfills):
            if offset < end:
                break
            for name, entry in before.items():
                found.pop(name, None)
                if entry is not None:
                    found[name] = entry
        return found

    def is_continued_by(self, previous: str, text: bytes) -> bool:
        """Whether the next segment's `previous` refers to this segment, whose segment.json is `text`."""
        return previous in (self.stands_for, manifest_hash(text)) and previous != ""

    @property
    def before(self) -> tuple[int, int] | None:
        """First and last offset of the segment before this one, or None if this is the log's first."""
        return None if self.previous_offset is None else (self.previous_offset, self.first_offset - 1)

    def last_checkpoint(self) -> Checkpoint:
        """Return the checkpoint at the segment's end."""
        return Checkpoint.from_value(self.checkpoint)

    def to_json(self) -> str:
        value = asdict(self)
        if not self.backfills:
            del value["backfills"]
            value["version"] = WITHOUT_BACKFILLS
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "segment.json") -> Segment:
        """Read a segment.json; an older version is converted to this one. Raises ConfigurationError if a newer cdcflow
        wrote it, or one that is too old."""
        value = json.loads(text)
        if value["version"] not in (SEGMENT_VERSION, *OLDER_VERSIONS):
            raise other_version(name, f"version {value['version']}", value["version"], SEGMENT_VERSION)
        files = tuple(map(SegmentFile.of, value["files"]))
        seams = tuple((int(cut), int(offset)) for cut, offset in value.get("seams", ()))
        backfills = tuple((int(offset), before) for offset, before in value.get("backfills", ()))
        more = {"files": files, "seams": seams, "backfills": backfills, "version": SEGMENT_VERSION}
        return cls(**{**value, **more})


def facts_of(checkpoint: Mapping[str, object]) -> Facts:
    """Return the backfill facts of tables in the JSON of a checkpoint, without their progress."""
    progress = checkpoint.get("progress")
    tables = progress.get("tables") if isinstance(progress, Mapping) else None
    if not isinstance(tables, Mapping):
        return {}
    return {
        str(name): {field: entry[field] for field in _FACTS if field in entry}
        for name, entry in tables.items()
        if isinstance(entry, Mapping)
    }


def newest_xid(known: int | None, ids: npt.NDArray[np.uint32]) -> int:
    """Return the latest of some transaction ids (their low 32 bits), `known` being the latest so far. They wrap around:
    of two ids the later is the one that is less than 2^31 ahead."""
    base = int(ids[0]) if known is None else known
    ahead = int((ids - np.uint32(base)).view(np.int32).max())
    return (base + max(0, ahead)) & 0xFFFFFFFF


def manifest_hash(text: bytes) -> str:
    """Return the hash of a segment.json with these bytes, as in the next segment's `previous`."""
    return hashlib.sha256(text).hexdigest()
