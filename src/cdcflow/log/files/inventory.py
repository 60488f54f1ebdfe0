"""Find which parts of a log's directory count: the same rule for the daemon that opens it and for `log check`, which
only reads.

It changes nothing. The amount it reads does not grow with the log: it finds the latest segments through the journal
that continues them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cdcflow.errors import InvariantViolated
from cdcflow.log.files import attached
from cdcflow.log.files.extents import counting_heads, opened_journal
from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.log.format.journal import JournalHeader
from cdcflow.log.format.recovery import Whole, whole
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, manifest_hash

CHAIN_CHECKED = 4
"""The number of latest manifests that are checked at every start; `log check` checks all."""
_RESTORE = "restore the log from a copy, or begin a new log with a new backfill"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The parts of a log's directory that count. `journals`: those that are not sealed yet, oldest first; `sealed`: the
    latest segment, and `last_manifest` the hash of its manifest; `history` has every shape; `stale`: journals that do
    not count, and `left`: journals that were sealed."""

    journals: tuple[Whole, ...]
    sealed: Segment | None
    last_manifest: str
    history: SchemaHistory
    schemas_saved: int
    stale: tuple[Path, ...]
    left: tuple[Path, ...]


def inventory(layout: Layout, file: LogFile) -> Inventory:
    """Read the state of a log that no other process writes.

    Raises:
        InvariantViolated: data that was durable is missing or damaged, or belongs to another log.
        ConfigurationError: another version of cdcflow wrote it.
    """
    noted = layout.newest_journal()  # first: a daemon may begin a journal concurrently
    heads, stale = _heads(layout, file)
    _check_newest(layout, heads, noted)
    heads, newest, left = _unsealed_journals(layout, file, heads)
    sealed, last_manifest = _chain(layout, file, newest)
    history = _history(layout)
    saved = len(history)
    journals = tuple(_scan_journals(layout, heads))
    for scanned in journals:
        for shape in scanned.shapes:
            history.learn(shape.table, shape.version)
    return Inventory(journals, sealed, last_manifest, history, saved, tuple(stale), tuple(left))


def _heads(layout: Layout, file: LogFile) -> tuple[list[JournalHeader], list[Path]]:
    """Return the headers of the journals that count, oldest first, and the paths of the others."""
    heads: list[JournalHeader] = []
    stale: list[Path] = []
    for head, counts in counting_heads(layout):
        path = layout.journal(head.first_offset)
        if head.log_id != file.log_id:
            raise InvariantViolated(
                f"opening the log {layout.root}: {path} is another log's journal",
                remedy=_RESTORE,
                runbook="log-damaged",
            )
        if counts:
            heads.append(head)
        else:
            stale.append(path)
    return heads, stale


def _check_newest(layout: Layout, heads: Sequence[JournalHeader], noted: tuple[int, int] | None) -> None:
    """Check that the latest journal exists. No other file refers to it, and its rows were acknowledged to the source.

    The recorded journal with the highest epoch is meant: a writer that was replaced may have recorded its own journal,
    which never counted.
    """
    if noted is None:
        return
    if not heads or (heads[-1].epoch, heads[-1].first_offset) < noted:
        raise _missing(layout, noted[1])


def _unsealed_journals(
    layout: Layout, file: LogFile, heads: Sequence[JournalHeader]
) -> tuple[list[JournalHeader], tuple[int, int] | None, list[Path]]:
    """Return the journals that are not sealed yet, oldest first, the bounds of the latest segment, and the leftover
    files.

    It walks back from the latest journal: each names where the one before it began, and that is a segment or another
    journal. Journals that are not reached in this way were sealed; only their files still exist.
    """
    by_offset = {int(head.first_offset): head for head in heads}
    if not heads:
        sealed = layout.segment_offsets()
        # The shapes are written once the first journal has its name.
        if sealed or file.first_offset > 1 or layout.schemas.exists():
            raise _missing(layout, sealed[-1][1] + 1 if sealed else file.first_offset)
        return [], None, []
    kept = [by_offset.pop(max(by_offset))]
    newest: tuple[int, int] | None = None
    # What was before the log's first offset has expired. Usually a later segment is found first; on a machine that got
    # the journals from peers, their segments may not exist yet.
    while newest is None and kept[0].first_offset > file.first_offset and (before := kept[0].previous) is not None:
        bounds = before, kept[0].first_offset - 1
        if layout.segment(*bounds).exists():
            newest = bounds
        elif before in by_offset:
            kept.insert(0, by_offset.pop(before))
        else:
            raise _missing(layout, before)
    if newest is None and kept[0].first_offset != file.first_offset:
        raise _missing(layout, file.first_offset)
    return kept, newest, [layout.journal(first) for first in by_offset]


def _missing(layout: Layout, offset: int) -> InvariantViolated:
    return InvariantViolated(
        f"opening the log {layout.root}: the journal or segment from offset {offset} is missing",
        remedy=_RESTORE,
        runbook="log-damaged",
    )


def _chain(layout: Layout, file: LogFile, newest: tuple[int, int] | None) -> tuple[Segment | None, str]:
    """Return the latest sealed segment, and its manifest's hash.

    Raises:
        InvariantViolated: a segment is missing, or a manifest does not match the hash in its successor.
    """
    sealed: Segment | None = None
    digest = ""
    later: Segment | None = None
    for segment, text in islice(layout.manifests_back(newest, file.first_offset), CHAIN_CHECKED):
        if segment.log_id != file.log_id:
            raise InvariantViolated(
                f"opening the log {layout.root}: segment {segment.first_offset}-{segment.last_offset} is another log's",
                runbook="log-damaged",
            )
        if later is not None and not segment.is_continued_by(later.previous, text):
            raise InvariantViolated(
                f"opening the log {layout.root}: the hash chain breaks at segment {segment.first_offset}-"
                f"{segment.last_offset}: its manifest was changed or replaced",
                remedy="run `cdcflow log check`, and restore the segment from a copy",
                runbook="log-damaged",
            )
        if sealed is None:
            sealed, digest = segment, manifest_hash(text)
        later = segment
    return sealed, digest


def _history(layout: Layout) -> SchemaHistory:
    try:
        return SchemaHistory.from_json(layout.schemas.read_bytes(), str(layout.schemas))
    except FileNotFoundError:
        return SchemaHistory()


def _scan_journals(layout: Layout, heads: Sequence[JournalHeader]) -> Iterator[Whole]:
    """Yield the part of each journal that counts, oldest first."""
    next_offset = heads[0].first_offset if heads else 0
    for head, successor in zip(heads, [*heads[1:], None][: len(heads)], strict=True):
        if head.first_offset != next_offset:
            raise _missing(layout, next_offset)
        scanned = _whole(layout, head, successor)
        next_offset = scanned.checkpoint.next_offset
        yield scanned


def _whole(layout: Layout, head: JournalHeader, successor: JournalHeader | None) -> Whole:
    end = None
    if successor is not None:
        if successor.previous != head.first_offset:
            raise InvariantViolated(
                f"opening the log {layout.root}: the journal from offset {successor.first_offset} continues the one "
                f"from {successor.previous}, and the one before it is from {head.first_offset}",
                runbook="log-damaged",
            )
        end = successor.previous_bytes
    with opened_journal(layout, head.first_offset) as (file, header, path):
        size = path.stat().st_size
        return whole(file, header, size, str(path), lambda a: attached.is_whole(layout, a), end=end)
