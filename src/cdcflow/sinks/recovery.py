"""Taking a log over: make it, or find out what of it counts, and begin a new journal.

Every start begins a new epoch and a new journal, whose head says how much of the journal before it counts. From then
on nothing that an older writer still does can become part of the log: its file is either closed at that byte or no
longer in the directory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from cdcflow.changelog import spool
from cdcflow.changelog.extents import counting_heads, opened_journal
from cdcflow.changelog.journal import Attach, JournalHeader
from cdcflow.changelog.layout import Layout, LogFile
from cdcflow.changelog.recovery import Whole, whole
from cdcflow.changelog.schema_history import SchemaHistory
from cdcflow.changelog.segment import Segment, manifest_hash
from cdcflow.errors import ConfigurationError, DiskFailed, HistoryLost, InvariantViolated
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.sinks.layer import FileLayer, remove_tree, storing, syncing, write_file
from cdcflow.sinks.lease import Lease
from cdcflow.sinks.retention import sweep

CHAIN_CHECKED = 4
"""So many of the newest manifests are checked at every start; `log check` checks all."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a log cut off: the end of a journal, behind the last whole cut, and why.

    `reason` is "" when nothing was cut, else "no cut" (whole, but never made visible), "torn", "checksum" or
    "spool". `spools` counts spools that no transaction had attached.
    """

    journal: str = ""
    bytes: int = 0
    rows: int = 0
    reason: str = ""
    spools: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """A journal that nothing more is written to: the next segment, once it is sealed."""

    header: JournalHeader
    bytes: int
    checkpoint: Checkpoint
    spools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A log that was taken over. `sealed` is its newest segment, `last_manifest` the hash of that one's manifest."""

    file: LogFile
    header: JournalHeader
    closed: tuple[Closed, ...]
    history: SchemaHistory
    schemas_saved: int
    sealed: Segment | None
    last_manifest: str
    recovered: Recovered


def create(layout: Layout, identity: SourceIdentity, layer: FileLayer, *, accept_timeline: bool) -> LogFile:
    """The log's `log.json`; the log is made when there is none. The directory itself is there, and locked.

    Raises:
        ConfigurationError: it is another source's log, or another version's.
        HistoryLost: the source went over to another timeline.
    """
    for directory in (layout.journals, layout.segments, layout.spools):
        if not directory.exists():
            layer.mkdir(directory)
    with syncing(layout.root):
        layer.fsync_dir(layout.root)
    if layout.log_json.exists():
        return _checked(layout, identity, layer, accept_timeline=accept_timeline)
    if layout.segment_offsets() or layout.journal_offsets():
        raise InvariantViolated(
            f"opening the log {layout.root}: it has data but no log.json", remedy="restore log.json"
        )
    file = LogFile(str(uuid.uuid4()), identity, datetime.now(UTC).isoformat(timespec="seconds"))
    write_file(layer, layout.log_json, file.to_json().encode())
    return file


def _checked(layout: Layout, identity: SourceIdentity, layer: FileLayer, *, accept_timeline: bool) -> LogFile:
    file = layout.log_file()
    if replace(file.source, timeline="") != replace(identity, timeline=""):
        raise ConfigurationError(
            f"opening the log {layout.root}: it belongs to {_named(file.source)}, and the source is {_named(identity)}",
            remedy="name another directory for this source's log, or the source that this log belongs to",
        )
    if file.source.timeline != identity.timeline:
        if not accept_timeline:
            raise HistoryLost(
                f"opening the log {layout.root}: the source was on timeline {file.source.timeline} and is on "
                f"{identity.timeline} now, as after a restore or a promotion: it may lack changes that the log has",
                remedy="if it was promoted without loss, accept the timeline; else begin a new log with a backfill",
            )
        file = replace(file, source=identity)
        write_file(layer, layout.log_json, file.to_json().encode())
    return file


def recover(layout: Layout, file: LogFile, lease: Lease, layer: FileLayer) -> Opened:
    """Begin an epoch, recover what is there, leave everything in order for a new journal.

    What it reads does not grow with the log: the newest segments are found by the journal that continues them.
    """
    lease.begin_epoch(layer, Epoch(0))
    heads, newest = _unsealed(layout, file, _heads(layout, file, layer), layer)
    sealed, last_manifest = _chain(layout, file, newest)
    history = _history(layout)
    saved = len(history)
    journals = list(_scanned(layout, heads))
    for scanned in journals:
        for shape in scanned.shapes:
            history.learn(shape.table, shape.version)
    base = sealed.last_checkpoint() if sealed else Checkpoint()
    recovered = Recovered()
    header = JournalHeader(file.log_id, lease.epoch, base)
    closed = [_closed(w) for w in journals if w.rows]
    if journals:
        last = journals[-1]
        recovered = Recovered(
            layout.journal(last.header.first_offset).name if last.reason else "",
            last.dropped_bytes,
            last.dropped_rows,
            last.reason,
        )
        header = _continuing(layout, last, lease, layer)
    orphans = _remove_orphans(layout, {name for c in closed for name in c.spools}, layer)
    recovered = replace(recovered, spools=orphans)
    return Opened(file, header, tuple(closed), history, saved, sealed, last_manifest, recovered)


def _named(identity: SourceIdentity) -> str:
    return f"{identity.kind} system {identity.system_id}, database {identity.database}"


def clean_up(layout: Layout, layer: FileLayer) -> None:
    """Remove what earlier runs left of segments: those never put in place, expired and compacted ones. Lists all. The
    caller holds the maintenance lock, and seals nothing meanwhile."""
    for path in layout.listed_segments()[1]:
        remove_tree(layer, path)
    sweep(layout, layer)


def _unsealed(
    layout: Layout, file: LogFile, heads: Sequence[JournalHeader], layer: FileLayer
) -> tuple[list[JournalHeader], tuple[int, int] | None]:
    """The journals that are not sealed yet, oldest first, and the bounds of the newest segment.

    From the newest journal back: each says where the one before it began, and that is a segment or another journal.
    What is left then was sealed, and only its file is still there.
    """
    by_offset = {int(head.first_offset): head for head in heads}
    if not heads:
        sealed = layout.segment_offsets()
        if sealed or file.first_offset > 1:
            raise _missing(layout, sealed[-1][1] + 1 if sealed else file.first_offset)
        return [], None
    kept = [by_offset.pop(max(by_offset))]
    newest: tuple[int, int] | None = None
    while newest is None and (before := kept[0].previous) is not None:
        bounds = before, kept[0].first_offset - 1
        if layout.segment(*bounds).exists():
            newest = bounds
        elif before in by_offset:
            kept.insert(0, by_offset.pop(before))
        else:
            raise _missing(layout, before)
    if newest is None and kept[0].first_offset != file.first_offset:
        raise _missing(layout, file.first_offset)
    for first in by_offset:
        layer.unlink(layout.journal(first))
    return kept, newest


def _missing(layout: Layout, offset: int) -> InvariantViolated:
    return InvariantViolated(f"opening the log {layout.root}: the journal or segment from offset {offset} is missing")


def _chain(layout: Layout, file: LogFile, newest: tuple[int, int] | None) -> tuple[Segment | None, str]:
    """The newest sealed segment, and its manifest's hash.

    Raises:
        InvariantViolated: a segment is missing, or a manifest is not the one that its successor saw.
    """
    sealed: Segment | None = None
    digest = ""
    later: Segment | None = None
    for segment, text in islice(layout.manifests_back(newest, file.first_offset), CHAIN_CHECKED):
        if segment.log_id != file.log_id:
            raise InvariantViolated(
                f"opening the log {layout.root}: segment {segment.first_offset}-{segment.last_offset} is another log's"
            )
        if later is not None and not segment.is_continued_by(later.previous, text):
            raise InvariantViolated(
                f"opening the log {layout.root}: the hash chain breaks at segment {segment.first_offset}-"
                f"{segment.last_offset}: its manifest was changed or replaced",
                remedy="run `cdcflow log check`, and restore the segment from a copy",
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


def _heads(layout: Layout, file: LogFile, layer: FileLayer) -> list[JournalHeader]:
    """The heads of the journals that count, oldest first; the files of the others go."""
    with storing(f"tidying {layout.root}"):
        for path in layout.journals.glob("*.tmp"):
            layer.unlink(path)
    heads: list[JournalHeader] = []
    for head, counts in list(counting_heads(layout)):
        path = layout.journal(head.first_offset)
        if head.log_id != file.log_id:
            raise InvariantViolated(f"opening the log {layout.root}: {path} is another log's journal")
        if counts:
            heads.append(head)
        else:
            layer.unlink(path)
    return heads


def _scanned(layout: Layout, heads: Sequence[JournalHeader]) -> Iterator[Whole]:
    """What counts of each journal, oldest first."""
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
                f"from {successor.previous}, and the one before it is from {head.first_offset}"
            )
        end = successor.previous_bytes
    with opened_journal(layout, head.first_offset) as (file, header, path):
        size = path.stat().st_size
        return whole(file, header, size, str(path), lambda a: _spool_is_whole(layout, a), end=end)


def _spool_is_whole(layout: Layout, attach: Attach) -> bool:
    try:
        with layout.spool(attach.spool).open("rb") as file:
            return spool.is_whole(file, attach)
    except FileNotFoundError:
        return False


def _continuing(layout: Layout, last: Whole, lease: Lease, layer: FileLayer) -> JournalHeader:
    """The head of the journal that follows the last one. What counts of that one is durable on return."""
    if not last.rows:
        # Nothing to keep but its checkpoint: the new journal takes its name and its place.
        return replace(last.header, epoch=lease.epoch, base=last.checkpoint)
    path = layout.journal(last.header.first_offset)
    # A killed process leaves whole cuts that were never synced. They count from now on, so they are synced now.
    _sync_file(layout.journal(last.header.first_offset), layer, last.bytes if last.dropped_bytes else None)
    for attach in last.spools:
        _sync_file(layout.spool(attach.spool), layer, None)
    if last.spools:
        with syncing(layout.spools):
            layer.fsync_dir(layout.spools)
    with syncing(path.parent):
        layer.fsync_dir(path.parent)
    return JournalHeader(last.header.log_id, lease.epoch, last.checkpoint, Offset(last.header.first_offset), last.bytes)


def _sync_file(path: Path, layer: FileLayer, size: int | None) -> None:
    fd = layer.open(path)
    try:
        if size is not None:
            layer.truncate(fd, size)
        with syncing(path):
            layer.fsync(fd)
    except DiskFailed as error:
        # What a killed process left: nobody knows how much of it is on the disk, and the next sync may say all of it.
        raise InvariantViolated(
            str(error).split("\n", maxsplit=1)[0],
            remedy=f"mend the disk, copy {path} to a new file under the same name, then start again",
        ) from error
    finally:
        layer.close(fd)


def _closed(scanned: Whole) -> Closed:
    return Closed(scanned.header, scanned.bytes, scanned.checkpoint, tuple(a.spool for a in scanned.spools))


def _remove_orphans(layout: Layout, attached: set[str], layer: FileLayer) -> int:
    orphans: Sequence[Path] = [p for p in layout.spools.iterdir() if p.name not in attached]
    for path in orphans:
        layer.unlink(path)
    return len(orphans)
