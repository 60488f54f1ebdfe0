"""Which files of a change log a merge must read: manifests only, no rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cdcflow.changelog.layout import Layout
from cdcflow.changelog.segment import Segment, SegmentFile
from cdcflow.errors import HistoryLost, InvariantViolated
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId, table_from_json


@dataclass(frozen=True, slots=True)
class InputFile:
    """One Parquet file with rows of one shape of a table."""

    path: str
    shape: Table
    file: SegmentFile

    @property
    def ops(self) -> Mapping[str, int]:
        return self.file.ops or {}


@dataclass(frozen=True, slots=True)
class Range:
    """Sealed segments, oldest first, without a gap."""

    root: Path
    log_id: str
    segments: tuple[Segment, ...]
    expired_before: int

    @property
    def newest(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    @property
    def checkpoint(self) -> Checkpoint:
        return _checkpoint(self.segments[-1])

    def tables(self) -> dict[str, TableId]:
        """Every table with rows in the log."""
        found: dict[str, TableId] = {}
        for segment in self.segments:
            for file in segment.files:
                if file.table is not None:
                    table = TableId(str(file.table["schema"]), str(file.table["name"]))
                    found[str(table)] = table
        return found

    def files(self, table: TableId, after_cut: int) -> list[InputFile]:
        """The files with rows of `table` behind cut `after_cut`, in the order of their offsets.

        Raises:
            InvariantViolated: the cut lies inside a segment, which no merge of ours can have left.
        """
        layout = Layout(self.root)
        found: list[InputFile] = []
        for segment in self.segments:
            if segment.last_cut <= after_cut:
                continue
            if segment.first_cut <= after_cut:
                raise InvariantViolated(
                    f"merging {table}: it has cut {after_cut}, which lies inside segment"
                    f" {segment.first_offset}-{segment.last_offset} of {self.root}"
                )
            room = layout.segment(segment.first_offset, segment.last_offset)
            found += [
                InputFile(str(room.resolve() / f.path), table_from_json(f.table), f)
                for f in segment.files
                if f.table is not None and (f.table["schema"], f.table["name"]) == (table.schema, table.name)
            ]
        return sorted(found, key=lambda f: (f.file.version, f.file.first_offset))

    def check_reaches(self, table: TableId, after_cut: int, since: int) -> None:
        """Refuse to go on from a cut behind which the log has expired. `since`: where the table's backfill began.

        Raises:
            HistoryLost: segments with changes of this table may be gone.
        """
        first = self.segments[0]
        if first.first_cut <= after_cut + 1 or (after_cut == 0 and since >= first.first_offset > 1):
            return
        raise HistoryLost(
            f"merging {table} from cut {after_cut}: the log {self.root} begins at cut {first.first_cut}"
            f" (offset {first.first_offset}); what was before has expired",
            remedy=f"run `cdcflow backfill {table}`, then merge again",
        )


def sealed(log_path: Path) -> Range:
    """The sealed segments of a log.

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
        InvariantViolated: a segment between two others is missing.
    """
    layout = Layout(log_path)
    log = layout.log_file()
    segments: list[Segment] = []
    for first, last in layout.segment_offsets():
        try:
            segments.append(layout.manifest(first, last)[0])
        except FileNotFoundError:  # expired between the listing and this
            continue
    _check_whole(log_path, log.log_id, segments)
    return Range(log_path, log.log_id, tuple(segments), log.first_offset)


def backfills(checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
    """Per table (by name) the backfill's `state`, `generation`, `since`."""
    found = checkpoint.progress.get("tables", {})
    return found if isinstance(found, dict) else {}


def offsets_of(files: Iterable[InputFile]) -> tuple[int, int]:
    """The first and the last offset in these files; (0, 0) when there are none."""
    known = [(f.file.first_offset, f.file.last_offset) for f in files]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else (0, 0)


def _check_whole(root: Path, log_id: str, segments: list[Segment]) -> None:
    for before, after in pairwise(segments):
        if after.first_offset != before.last_offset + 1:
            raise InvariantViolated(
                f"reading {root}: no segment has the offsets {before.last_offset + 1} to {after.first_offset - 1}"
            )
    for segment in segments:
        if segment.log_id != log_id:
            raise InvariantViolated(
                f"reading {root}: segment {segment.first_offset}-{segment.last_offset} belongs to another log"
            )


def _checkpoint(segment: Segment) -> Checkpoint:
    return Checkpoint.from_json(json.dumps(segment.checkpoint))
