"""Opens a log for writing: creates it, or finds out which part of it counts, and begins a new journal.

Every start begins a new epoch and a new journal, whose head records how much of the previous journal counts. After
that, nothing that an older writer still writes can become part of the log: its file is either closed at that byte or no
longer in the directory.

With a lease (`Lease.replaces`) a start may itself have been replaced when it does the next step, without knowing it: it
was suspended in between. So it neither replaces, shortens nor removes anything that a later writer may use. It removes
only files with the number of an epoch up to its own, and leaves the end of a journal that does not count.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated, SyncFailed
from cdcflow.log.disk.layer import FileLayer, remove_tree, storing, syncing, write_file, write_new_file
from cdcflow.log.disk.lease import Lease
from cdcflow.log.files.inventory import Inventory, inventory
from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.log.format.journal import JournalHeader
from cdcflow.log.format.recovery import Whole
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment
from cdcflow.log.maintenance.retention import sweep
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.sinks.other_sources import if_replaced


@dataclass(frozen=True, slots=True)
class Recovered:
    """The part of a log that opening it dropped: the end of a journal, after the last whole cut, and the reason.

    `reason` is "" if nothing was dropped, otherwise "no cut" (whole, but never made visible), "torn", "checksum" or
    "spool" or "file" (a file that it attached is missing or not whole). `spools` counts files next to the journal that
    no journal had attached.
    """

    journal: str = ""
    bytes: int = 0
    rows: int = 0
    reason: str = ""
    spools: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """A journal that is no longer written to: the next segment, once it is sealed.

    `attached`: names of its files outside the journal.
    """

    header: JournalHeader
    bytes: int
    checkpoint: Checkpoint
    attached: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A log that was opened for writing.

    `sealed` is its latest segment, `last_manifest` the hash of that segment's manifest.
    """

    file: LogFile
    header: JournalHeader
    closed: tuple[Closed, ...]
    history: SchemaHistory
    schemas_saved: int
    sealed: Segment | None
    last_manifest: str
    recovered: Recovered


def create(
    layout: Layout,
    identity: SourceIdentity,
    layer: FileLayer,
    lease: Lease,
    *,
    accept_timeline: bool,
    accept_renamed: bool = False,
    accept_replaced: bool = False,
    accept_moved: bool = False,
) -> LogFile:
    """Return the log's `log.json`; create the log if it does not exist. The directory itself exists, and is locked.

    Raises:
        ConfigurationError: it is another source's log, or another version's.
        HistoryLost: the source has switched to another timeline.
    """
    for directory in (layout.journals, layout.segments, layout.spools):
        if not directory.exists():
            with contextlib.suppress(FileExistsError):
                layer.mkdir(directory)
    with syncing(layout.root):
        layer.fsync_dir(layout.root)
    if layout.log_json.exists():
        file = layout.log_file()
        if accept_moved:
            return _of_source(layout, file, identity, layer, lease)
        if not identity.is_source_of(file.source, renamed=accept_renamed, replaced=accept_replaced):
            raise _of_another_source(layout, file, identity)
        return _check_identity(layout, file, identity, layer, lease, accept_timeline=accept_timeline)
    if layout.segment_offsets() or layout.journal_offsets():
        raise InvariantViolated(
            f"opening the log {layout.root}: it has data but no log.json",
            remedy="restore log.json",
            runbook="log-damaged",
        )
    file = LogFile(str(uuid.uuid4()), identity, datetime.now(UTC).isoformat(timespec="seconds"))
    # Another process may begin a log here at the same time, if it believes that it holds the lease. One of them does.
    if write_new_file(layer, layout.log_json, file.to_json().encode(), lease.word):
        return file
    return layout.log_file()


def _of_another_source(layout: Layout, file: LogFile, identity: SourceIdentity) -> ConfigurationError:
    remedy = "name another directory for this source's log, or the source that this log belongs to" + if_replaced(
        file.source, identity
    )
    return ConfigurationError(
        f"opening the log {layout.root}: it belongs to {_describe_identity(file.source)}, and the source is "
        f"{_describe_identity(identity)}",
        remedy=remedy,
        runbook="other-log",
    )


def _check_identity(
    layout: Layout, file: LogFile, identity: SourceIdentity, layer: FileLayer, lease: Lease, *, accept_timeline: bool
) -> LogFile:
    # A database keeps the name that it had when the log began: the server is queried whether it was renamed.
    identity = replace(identity, database=file.source.database)
    is_same_server = file.source.system_id == identity.system_id
    if is_same_server and file.source.timeline != identity.timeline and not accept_timeline:
        raise HistoryLost(
            f"opening the log {layout.root}: the source was on timeline {file.source.timeline} and is now on "
            f"{identity.timeline}, as after a restore or a promotion: it may lack changes that the log has",
            remedy="run `cdcflow run --accept-history-loss`, which reads all tables again",
            runbook="restored-source",
        )
    return _of_source(layout, file, identity, layer, lease)


def _of_source(layout: Layout, file: LogFile, identity: SourceIdentity, layer: FileLayer, lease: Lease) -> LogFile:
    """Record in the log's file that the log belongs to this source, and return it."""
    if file.source != identity:
        file = replace(file, source=identity)
        write_file(layer, layout.log_json, file.to_json().encode(), lease.word)
    return file


def recover(layout: Layout, file: LogFile, lease: Lease, layer: FileLayer) -> Opened:
    """Begin an epoch, inspect the existing files, and prepare a new journal. If the log is refused, all files stay."""
    # The epoch first: what an older writer does from now on does not count, so nothing changes during the inspection.
    lease.begin_epoch(layer, Epoch(0))
    _forget_cached(layout)
    found = inventory(layout, file)
    while (newest := _newest_epoch(found)) >= lease.epoch:
        # A writer began at the same time, or while this process was suspended: this epoch has to be after its own.
        lease.begin_epoch(layer, newest)
        found = inventory(layout, file)
    with storing(f"tidying {layout.root}"):
        # No writer begins a journal at an offset that is sealed, while a later one may have replaced a stale journal.
        stale = () if lease.replaces else found.stale
        for path in (*_journals_without_name(layout, lease.epoch), *found.left, *stale):
            with contextlib.suppress(FileNotFoundError):
                layer.unlink(path)
    journals, sealed = found.journals, found.sealed
    base = sealed.last_checkpoint() if sealed else Checkpoint()
    recovered = Recovered()
    header = JournalHeader(file.log_id, lease.epoch, base)
    closed = [_as_closed(w) for w in journals if w.rows]
    if journals:
        last = journals[-1]
        recovered = Recovered(
            layout.journal(last.header.first_offset).name if last.reason else "",
            last.dropped_bytes,
            last.dropped_rows,
            last.reason,
        )
        header = _continuing(layout, last, lease, layer)
    orphans = _remove_orphans(layout, {name for c in closed for name in c.attached}, layer, lease.epoch)
    recovered = replace(recovered, spools=orphans)
    return Opened(
        file, header, tuple(closed), found.history, found.schemas_saved, sealed, found.last_manifest, recovered
    )


def _newest_epoch(found: Inventory) -> Epoch:
    return max((journal.header.epoch for journal in found.journals), default=Epoch(0))


def _forget_cached(layout: Layout) -> None:
    """Drop the files from the system's cache, so that they are next read from the disk.

    After a failed sync the cache may hold data, as if it were written, that never reached the disk.
    """
    for path in (*layout.journals.glob("*.journal"), *layout.spools.iterdir()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _describe_identity(identity: SourceIdentity) -> str:
    return f"{identity.kind} system {identity.system_id}, database {identity.database}"


def clean_up(layout: Layout, layer: FileLayer, epoch: Epoch) -> None:
    """Remove unfinished, expired and compacted segments that runs before this epoch left. Lists all segments.

    The caller holds the maintenance lock, and seals nothing at the same time.
    """
    for path in layout.listed_segments()[1]:
        if _number(path.stem.rpartition(".")[2]) < epoch:
            remove_tree(layer, path)
    sweep(layout, layer)


def _continuing(layout: Layout, last: Whole, lease: Lease, layer: FileLayer) -> JournalHeader:
    """Return the head of the journal that follows the last one. The part of the last one that counts is durable on
    return."""
    if not last.rows:
        # Nothing to keep but its checkpoint: the new journal takes its name and replaces it.
        return replace(last.header, epoch=lease.epoch, base=last.checkpoint)
    path = layout.journal(last.header.first_offset)
    # A killed process leaves whole cuts that were never synced. They count from now on, so they are synced now.
    _sync_file(path, layer, last.bytes if last.dropped_bytes and not lease.replaces else None)
    for record in last.attached:
        _sync_file(layout.spool(record.name), layer, None)
    if last.attached:
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
    except SyncFailed as error:
        # Left by a killed process: it is unknown how much of it is on the disk, and the next sync may report success.
        raise InvariantViolated(
            str(error).split("\n", maxsplit=1)[0],
            remedy=f"fix the disk, copy {path} to a new file under the same name, then start again",
            runbook="sync-failed",
        ) from error
    finally:
        layer.close(fd)


def _as_closed(scanned: Whole) -> Closed:
    return Closed(scanned.header, scanned.bytes, scanned.checkpoint, tuple(record.name for record in scanned.attached))


def _journals_without_name(layout: Layout, epoch: Epoch) -> list[Path]:
    """Return journals to which an earlier writer has not given their names yet. It can no longer do so after they
    were removed."""
    return [path for path in layout.journals.glob("*.tmp") if _number(path.stem.rpartition(".")[2]) <= epoch]


def _remove_orphans(layout: Layout, attached: set[str], layer: FileLayer, epoch: Epoch) -> int:
    """Remove files of earlier writers that no journal attaches, and return how many.

    A writer that has been replaced also finds here the files of the present writer, which that one has not attached
    yet.
    """
    orphans = [p for p in layout.spools.iterdir() if p.name not in attached and _number(p.name[:10]) < epoch]
    for path in orphans:
        layer.unlink(path)
    return len(orphans)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
