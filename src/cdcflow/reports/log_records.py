"""What a log consists of, and what it has recorded of commands, repairs and gaps, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import number, size, utc_time

if TYPE_CHECKING:
    from cdcflow.capture.interleave.progress import CommandRecord, GapRecord, RepairRecord
    from cdcflow.log.format.segment import Segment
    from cdcflow.sinks.kafka.state import TopicRange


def segment_parts(segments: Sequence[Segment], end: int) -> Iterator[Part]:
    """The sealed segments of a log whose rows end before offset `end`."""
    rows = [
        (
            f"{s.first_offset}-{s.last_offset}",
            f"{s.first_cut}-{s.last_cut}",
            s.last_transaction - s.first_transaction + 1,
            number(s.last_offset - s.first_offset + 1),
            size(sum(f.bytes for f in s.files)),
            ", ".join(sorted({_name(f.table) for f in s.files if f.table is not None})),
        )
        for s in segments
    ]
    yield TextTable(("offsets", "cuts", "transactions", "rows", "size", "tables"), rows)
    sealed = segments[-1].last_offset if segments else 0
    yield f"{len(segments)} segments; {max(0, end - 1 - sealed)} rows are still in the journal"


def topic_range_parts(ranges: Sequence[TopicRange], end: int) -> Iterator[Part]:
    """The parts of a topic that can be read by themselves. `end`: the offset after the log's last row."""
    ends = [*(one.first_offset for one in ranges[1:]), end]
    rows = [
        (
            f"{one.first_offset}-{end - 1}" if end > one.first_offset else "none",
            one.topic_offset,
            number(end - one.first_offset),
        )
        for one, end in zip(ranges, ends, strict=True)
    ]
    yield TextTable(("offsets", "topic offset", "rows"), rows)


def command_parts(found: Sequence[CommandRecord]) -> Iterator[Part]:
    """The commands of operators, with who gave them and their outcomes."""
    rows = [
        (
            one.number,
            _time(one.at_us),
            one.asked_by,
            one.op,
            " ".join(f"{name}={value}" for name, value in one.details.items()),
            "; ".join(f"{table}: {outcome}" for table, outcome in one.outcomes.items()),
        )
        for one in found
    ]
    yield TextTable(("number", "when", "who", "operation", "with", "outcome"), rows)


def repair_parts(found: Sequence[RepairRecord]) -> Iterator[Part]:
    """The repairs of rows."""
    rows = [
        (
            one.number,
            str(one.table),
            f"{one.first_offset}-{one.last_offset}",
            one.keys,
            one.deleted,
            one.left,
            one.known_until or "unknown",
            one.position,
        )
        for one in found
    ]
    columns = ("number", "table", "offsets", "keys", "deleted", "left", "known until", "repaired at")
    yield TextTable(columns, rows)


def gap_parts(found: Sequence[GapRecord]) -> Iterator[Part]:
    """The gaps: positions between which nothing is known."""
    rows = [(one.number, _time(one.at_us), one.before, one.after, one.offset) for one in found]
    yield TextTable(("number", "when", "known until", "known since", "offset"), rows)


def _time(us: int) -> str:
    return f"{utc_time(us)[:19]}Z"


def _name(table: Mapping[str, Any]) -> str:
    return f"{table['schema']}.{table['name']}"
