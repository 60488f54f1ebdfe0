"""The timeline of a pipeline, from its log and the files in its log's folder alone.

    manifests, checkpoints   rows by time, tables being read, epochs, gaps, operators' commands, repairs
    shapes                   schema changes
    activity                 when a daemon ran and in which state, merges, comparisons

Times of rows are commit times at the source; times of processes are those of their machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cdcflow.capture.interleave.progress import commands_of, gaps_of
from cdcflow.config import Config
from cdcflow.log.format.segment import Segment
from cdcflow.log.maintenance import activity
from cdcflow.log.maintenance.activity import Activity, ActivitySpan
from cdcflow.log.read import reader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import Table, TableId
from cdcflow.wiring.logs import log_reader, sealed_layout

OUTAGE_S = 45.0
"""A daemon that was not seen for this long did not run; it is seen every 10 s."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """Something that lasted, from `begin` to `end` in seconds since 1970. `text`: what it was, for operators."""

    lane: str
    begin: float
    end: float
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """Something that happened at a time."""

    lane: str
    at: float
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class RateStep:
    """Rows that were committed between two times; `rows` per second is their height."""

    begin: float
    end: float
    rows: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that is known between two times, oldest first. `name`: the log's."""

    name: str
    begin: float
    end: float
    spans: Sequence[TimelineSpan]
    marks: Sequence[TimelineMark]
    rates: Sequence[RateStep] = field(default=())


def timeline(config: Config, begin: float | None, end: float, now: float) -> Timeline:
    """Return the timeline of the configured log. `begin` None: from its beginning. Times are seconds since 1970.

    Raises:
        ConfigurationError: there is no log.
    """
    log = log_reader(config)
    ends = _segment_ends(config, log)
    known = activity.of_log(config.log.folder)
    spans = [*_captures(known.capture, now), *_backfills(ends), *_merges(known.merges)]
    marks = [*_epochs(ends), *_schemas(log, ends), *_comparisons(known), *_people(ends)]
    rates = _rates(ends)
    begins = [one.begin for one in spans] + [one.begin for one in rates] + [one.at for one in marks]
    first = min(begins, default=end)
    begin = first if begin is None else begin
    return Timeline(
        name=Path(log.name).name or log.name,
        begin=begin,
        end=end,
        spans=sorted(
            (_cut(one, begin, end) for one in spans if one.end >= begin and one.begin <= end), key=lambda one: one.begin
        ),
        marks=sorted((one for one in marks if begin <= one.at <= end), key=lambda one: one.at),
        rates=[one for one in rates if one.end >= begin and one.begin <= end],
    )


def _cut(one: TimelineSpan, begin: float, end: float) -> TimelineSpan:
    return TimelineSpan(one.lane, max(one.begin, begin), min(one.end, end), one.state, one.text)


# ── out of the log ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _LogEnd:
    """The end of a segment, or of the log. `clock`: its commit time in seconds; `segment`: `None` for the log's end."""

    clock: float
    epoch: int
    next_offset: int
    progress: Mapping[str, Any]
    segment: Segment | None


def _segment_ends(config: Config, log: LogReader) -> list[_LogEnd]:
    layout = sealed_layout(config)
    segments = reader.list_segments(layout) if layout.exists() else []
    newest = log.newest_checkpoint()
    found = [(one.last_checkpoint(), one) for one in segments]
    ends = [_LogEnd(c.commit_clock / 1e6, c.epoch, c.next_offset, c.progress, one) for c, one in found]
    if not found or newest.cut > found[-1][0].cut:
        ends.append(_LogEnd(newest.commit_clock / 1e6, newest.epoch, newest.next_offset, newest.progress, None))
    ends = [one for one in ends if one.clock]
    first_offset = segments[0].first_offset if segments else 1
    begin = _commit_time(log, first_offset) if ends else None
    if begin is None or begin > ends[0].clock:
        return ends
    # What was read before a log's first segment that has not expired is not known.
    progress = {} if first_offset == 1 else ends[0].progress
    return [_LogEnd(begin, ends[0].epoch, first_offset, progress, None), *ends]


def _rates(ends: Sequence[_LogEnd]) -> list[RateStep]:
    return [
        RateStep(before.clock, after.clock, after.next_offset - before.next_offset)
        for before, after in pairwise(ends)
        if after.clock > before.clock
    ]


def _epochs(ends: Sequence[_LogEnd]) -> Iterator[TimelineMark]:
    for before, after in pairwise(ends):
        if after.epoch != before.epoch:
            yield TimelineMark("capture", after.clock, "start", f"the capture began again (epoch {after.epoch})")


def _backfills(ends: Sequence[_LogEnd]) -> Iterator[TimelineSpan]:
    """Yield a span for each time that a table was being read: from the last end before it to the first end at which it
    no longer was."""
    begun: dict[str, float] = {}
    known = {name: entry.get("generation") for name, entry in _tables(ends[0]).items()} if ends else {}
    for before, after in pairwise(ends):
        for name, entry in _tables(after).items():
            state, generation = str(entry.get("state")), entry.get("generation")
            is_new, known[name] = known.get(name) != generation, generation
            if state in ("waiting", "reading", "paused"):
                begun.setdefault(name, before.clock)
            elif name in begun or is_new:
                begin = begun.pop(name, before.clock)
                yield TimelineSpan("backfill", begin, after.clock, state, f"{name} was read: {state}")
    for name, begin in begun.items():
        yield TimelineSpan("backfill", begin, ends[-1].clock, "reading", f"{name} is being read")


def _tables(end: _LogEnd) -> Mapping[str, Mapping[str, Any]]:
    return end.progress.get("tables") or {}


def _schemas(log: LogReader, ends: Sequence[_LogEnd]) -> Iterator[TimelineMark]:
    """Yield a mark for each shape of a table after its first, where the log first has that shape."""
    shapes = {table: by_version for table, by_version in log.table_shapes().items() if len(by_version) > 1}
    for table, by_version in shapes.items():
        for (_, before), (version, after) in pairwise(sorted(by_version.items())):
            at = _shape_begins(log, table, version, ends)
            if at is not None:
                yield TimelineMark("schema", at, "changed", f"{table}: {_difference(before, after)}")


def _shape_begins(log: LogReader, table: TableId, version: int, ends: Sequence[_LogEnd]) -> float | None:
    """Return the commit time of the first row that has a shape; that of its segment's end if the row cannot be read."""
    for one in ends:
        if one.segment is None:
            continue
        offsets = [
            file.first_offset
            for file in one.segment.files
            if file.version == version and file.table is not None and _is_of(file.table, table)
        ]
        if offsets:
            return _commit_time(log, min(offsets))
    return _in_journal(log, table, version, ends)


def _is_of(shape: Mapping[str, object], table: TableId) -> bool:
    return (shape.get("schema"), shape.get("name")) == (table.schema, table.name)


def _in_journal(log: LogReader, table: TableId, version: int, ends: Sequence[_LogEnd]) -> float | None:
    sealed = [one.next_offset for one in ends if one.segment is not None]
    for _, found, rows in log.read_rows(sealed[-1] if sealed else 1, None, [table]):
        if found == version:
            return _commit_time(log, rows.column("_offset")[0].as_py())
    return None


def _commit_time(log: LogReader, offset: int) -> float | None:
    for headers in log.read_transactions(offset, offset):
        return float(headers.column("commit_ts")[0].as_py().timestamp())
    return None


def _difference(before: Table, after: Table) -> str:
    old, new = ({c.name: str(c.type.source) for c in table.columns} for table in (before, after))
    parts = [f"+ {name} {new[name]}" for name in new if name not in old]
    parts += [f"- {name}" for name in old if name not in new]
    parts += [f"{name} {old[name]} became {new[name]}" for name in new if name in old and old[name] != new[name]]
    return ", ".join(parts) or "another key, identity or incarnation"


def _people(ends: Sequence[_LogEnd]) -> Iterator[TimelineMark]:
    """Yield marks of operators' commands, and of gaps: each checkpoint has the latest ones of its time."""
    commands = {one.number: one for end in ends for one in commands_of(end.progress)}
    for command in commands.values():
        tables = ", ".join(list(command.outcomes)[:3])
        text = f"{command.op}{f' {tables}' if tables else ''}, by {command.asked_by}"
        yield TimelineMark("commands", command.at_us / 1e6, "command", text)
    for gap in {one.number: one for end in ends for one in gaps_of(end.progress)}.values():
        yield TimelineMark(
            "capture", gap.at_us / 1e6, "gap", f"changes between {gap.before} and {gap.after} are not in the log"
        )


# ── out of the activity of processes ────────────────────────────────────────────────────────────────────────


def _captures(spans: Sequence[ActivitySpan], now: float) -> Iterator[TimelineSpan]:
    for one, after in zip(spans, (*spans[1:], None), strict=True):
        if one.state == "stopped":
            continue  # only marks the end of a daemon, and has no duration
        if one.state == "starting" and after is not None and after.ended:
            one = replace(one, state="ending")  # a capture that has ended is ready to start
        text = f"{one.state}: {one.reason}" if one.reason else one.state
        yield TimelineSpan("capture", one.begin, one.end, one.state, text)
    for before, after in pairwise(spans):
        absent_s = after.begin - before.end
        if absent_s > 0 and (before.ended or before.of != after.of or absent_s > OUTAGE_S):
            yield _absence(before, after.begin)
    if spans and (spans[-1].ended or now - spans[-1].end > OUTAGE_S):
        yield _absence(spans[-1], now)


def _absence(before: ActivitySpan, until: float) -> TimelineSpan:
    """Return the span after `before` in which no daemon ran, or none could be seen."""
    if before.ended:
        why = "it was halted" if before.state == "halted" else "it was stopped"
        return TimelineSpan("capture", before.end, until, "stopped", f"no daemon ran: {why}")
    return TimelineSpan("capture", before.end, until, "outage", "no daemon ran: it was killed, or its machine stopped")


def _merges(spans: Iterable[ActivitySpan]) -> Iterator[TimelineSpan]:
    for one in spans:
        count = f"{one.times} merges" if one.times > 1 else "1 merge"
        text = f"{count}, {one.rows:,} rows" if one.state == "merged" else f"{count} failed: {one.reason}"
        yield TimelineSpan("merge", one.begin, one.end, one.state, text)


def _comparisons(known: Activity) -> Iterator[TimelineMark]:
    for one in known.comparisons:
        found = f"{one.rows:,} rows differ" if one.state == "different" else "equal"
        yield TimelineMark("verify", one.begin, one.state, f"{one.of}: {found}")
