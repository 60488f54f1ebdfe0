"""The log after a crash at any time: the states a disk may be in, rebuilt by the thousand and recovered.

One run is recorded: appends, cuts, syncs, spools, rolls, seals, a killed process and its recovery. For every step of
it, states are built in which unsynced data is present, gone, cut short, in pieces or out of order. Each is recovered,
and then: nothing acknowledged is lost, nothing is half visible, offsets have no gap, and the log can be written
further.

`CDCFLOW_CRASH_STATES` sets how many states; a failure prints the seed that rebuilds its state.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.servers.disks import Recording, Tree, Unsynced

from cdcflow.capture.ports.log import Numbered
from cdcflow.config import Seal
from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.log.format import framing
from cdcflow.log.read.reader import check, read_rows
from cdcflow.model.change import reads
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.sinks.files import log as files
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, transactions

STATES = int(os.environ.get("CDCFLOW_CRASH_STATES", "700"))
MANY = 4000  # in `make test-long`
PLANTED_STATES = max(1000, STATES // 5)  # a planted bug must be found within these
IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


class Lost(Exception):
    """A state was not recovered as it must be."""


@dataclass
class Story:
    """Writes a log whose content follows from its offsets alone, and notes what was cut and what was acknowledged."""

    disk: Recording
    chance: random.Random
    log: FileLog = field(init=False)
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.log = FileLog.open(self.disk.root / "log", IDENTITY, Seal(), layer=self.disk)
        self.log.file_bytes_min = 1
        self.writer = Writer.of(self.log)
        self._acknowledge()

    def kill(self) -> None:
        """The process ends; what it wrote stays in the system's memory."""
        self.log._lease.release()

    def append(self, rows: int) -> None:
        at = int(self.writer.checkpoint.next_offset)
        wide = ORDERS_WIDER if (at // 7) % 2 else ORDERS
        offsets = range(at, at + rows)
        mine = [o for o in offsets if o % 3]
        theirs = [o for o in offsets if not o % 3]
        batches = [changes(wide, [{"id": o, "note": f"row {o}" * (o % 5)} for o in mine], [o - at for o in mine])]
        if theirs:
            batches.append(changes(PRODUCTS, [{"id": o} for o in theirs], [o - at for o in theirs]))
        ends = [rows] if rows < 3 else [rows - 2, rows]
        self.writer.append(
            transactions([at + i for i in range(len(ends))], ends, *[b for b in batches if len(b.index)])
        )

    def spool(self, pieces: int) -> None:
        """A transaction of three rows that are kept and `pieces` that are not."""
        at = int(self.writer.checkpoint.next_offset)
        stay = [changes(ORDERS, [{"id": at}, {"id": at + 1}])]
        gone = [changes(PRODUCTS, [{"id": 10**6 + i, "picture": bytes(50)}]) for i in range(pieces)]
        spooled = self.writer.write_spool(
            at,
            [
                (stay, np.array([1, 1], np.uint64)),
                *(([b], np.array([2], np.uint64)) for b in gone),
                ([changes(ORDERS, [{"id": at + 2}])], None),
            ],
            [2],
            rows=3,
        )
        self.writer.append(spooled)

    def read(self, rows: int) -> None:
        """A chunk, whose rows go into a separate file."""
        at = int(self.writer.checkpoint.next_offset)
        columns = {"id": range(at, at + rows), "note": [f"row {o}" for o in range(at, at + rows)]}
        chunk = pa.RecordBatch.from_pydict(columns, ORDERS.row_schema)
        self.writer.append(reads(ORDERS, [chunk], Position(f"0/{at:X}"), COMMIT_TS))

    def cut(self) -> None:
        self.disk.note(("cut", self._next_cut()))
        self.writer.cut()
        self.log._write()

    def sync(self) -> None:
        self.log.sync()
        self._acknowledge()

    def roll(self) -> None:
        self.log.roll()
        self._acknowledge()

    def seal(self) -> None:
        self.log.seal_pending()

    def tell(self) -> None:
        """Everything that the daemon does, once."""
        for rows in (1, 4, 2):
            self.append(rows)
            self.cut()
        self.sync()
        self.append(5)
        self.append(3)
        self.cut()
        self.sync()
        self.read(4)
        self.append(1)
        self.cut()
        self.read(3)
        self.cut()
        self.sync()
        self.read(2)
        self.cut()
        self.log._write()  # as in a sync whose cut came before, or after a large append
        self.append(1)
        self.cut()
        self.sync()
        self.spool(pieces=2)
        self.cut()
        self.append(1)
        self.cut()
        self.sync()
        self.log.roll()
        for rows in (2, 1, 7, 1, 3):
            self.append(rows)
            self.cut()
        self.sync()
        self.seal()
        for rows in (1, 1, 5):
            self.append(rows)
            self.cut()
        self.log.roll()
        self.append(2)
        self.log.roll()
        self.cut()
        self.sync()
        self.append(6)
        self.append(2)
        self.kill()
        self.open()
        self.append(40)
        self.cut()
        self.append(1)
        self.cut()
        self.roll()
        self.read(2)
        self.spool(pieces=1)
        self.cut()
        self.sync()
        self.roll()
        self.seal()
        self.append(3)
        self.cut()
        self.sync()
        self.append(3)
        self.cut()

    def _next_cut(self) -> str:
        at = self.writer.checkpoint
        return Checkpoint(
            at.position, at.next_offset, at.next_transaction, at.cut + 1, at.commit_clock, self.log.epoch
        ).to_json()

    def _acknowledge(self) -> None:
        self.disk.note(("acknowledged", self.log.checkpoint.cut))


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold for a state: this cut was acknowledged, and nothing but these cuts may be found."""

    acknowledged: int = 0
    cuts: frozenset[str] = frozenset({Checkpoint().to_json()})

    def extended(self, notes: Sequence[object]) -> Promise:
        acknowledged, cuts = self.acknowledged, set(self.cuts)
        for note in notes:
            assert isinstance(note, tuple)
            kind, value = note
            if kind == "cut":
                cuts.add(value)
            else:
                acknowledged = max(acknowledged, value)
        return Promise(acknowledged, frozenset(cuts))


class Recoveries:
    """Recovers states in `fresh` directories and holds the results against promises; equal states only once."""

    def __init__(self, fresh: Callable[[], Path]) -> None:
        self._fresh = fresh
        self._found: dict[object, Checkpoint] = {}

    @property
    def distinct(self) -> int:
        return len(self._found)

    def hold(self, tree: Tree, promise: Promise, *, goes_on: bool) -> None:
        """Lost, if this state breaks the promise. `goes_on`: also keep writing, seal and check it all."""
        key = tree.key()
        if key not in self._found or goes_on:
            self._found[key] = recovered(tree, self._fresh(), goes_on=goes_on)
        found = self._found[key]
        if found.cut < promise.acknowledged:
            raise Lost(f"cut {promise.acknowledged} was acknowledged, the log ends at cut {found.cut}")
        if found.to_json() not in promise.cuts:
            raise Lost(f"a checkpoint that was never cut: {found.cut}")


def recovered(tree: Tree, root: Path, *, goes_on: bool) -> Checkpoint:
    """What recovery finds in a state; Lost if it is not whole."""
    tree.put_into(root)
    try:
        return _recovered(root, goes_on=goes_on)
    except CdcflowError as error:
        raise Lost(f"recovery refuses: {error}") from error


def _recovered(root: Path, *, goes_on: bool) -> Checkpoint:
    log = FileLog.open(root / "log", IDENTITY, layer=Unsynced())
    try:
        found = log.checkpoint
        _whole(root / "log", found)
        if goes_on:
            writer = Writer.of(log)
            at = int(found.next_offset)
            writer.put(transactions([1], [2], changes(ORDERS, [{"id": at}, {"id": at + 1}])))
            log.close()
            _whole(root / "log", writer.checkpoint)
            faults = check(root / "log", deep=True).faults
            if faults:
                raise Lost(f"the continued log is not whole: {faults}")
        return found
    finally:
        log._dead = log._dead or SinkUnavailable("left behind")
        log.close()


def _whole(path: Path, checkpoint: Checkpoint) -> None:
    stretches = [(rows.column(OFFSET).to_numpy(), rows.column("id").to_numpy()) for _, _, rows in read_rows(path)]
    offsets = np.concatenate([o for o, _ in stretches]) if stretches else np.empty(0)
    if not np.array_equal(np.sort(offsets), np.arange(1, checkpoint.next_offset)):
        raise Lost(f"rows {len(offsets)}, the checkpoint expects {checkpoint.next_offset - 1}")
    if any((o != row).any() for o, row in stretches):
        raise Lost("rows are not what was appended")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Recording]], Recording]:
    """Run the story on a recording disk. Frames reach the file at once: uncut ones too, cuts before their sync."""

    def tell(disk_type: type[Recording]) -> Recording:
        (tmp_path / "told").mkdir()
        disk = disk_type(tmp_path / "told")
        story = Story(disk, random.Random(1))
        story.tell()
        story.kill()
        return disk

    monkeypatch.setattr(files, "BUFFERED_BYTES_MAX", 1)
    return tell


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Empty directories, in memory where there is such a place."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path  # noqa: S108 - a file system, not a file name
    root = base / f"cdcflow-crash-{os.getpid()}"
    shutil.rmtree(root, ignore_errors=True)

    def make() -> Path:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        return root

    yield make
    shutil.rmtree(root, ignore_errors=True)


def crashed(disk: Recording, seed: int, before: Promise | None = None) -> tuple[Tree, Promise]:
    chance = random.Random(seed)
    count = seed % (len(disk.operations) + 1)
    return disk.after(count, chance), (before or Promise()).extended(disk.noted(count))


def first_lost(disk: Recording, fresh: Callable[[], Path], states: int) -> str | None:
    recoveries = Recoveries(fresh)
    for seed in range(states):
        tree, promise = crashed(disk, seed)
        try:
            recoveries.hold(tree, promise, goes_on=False)
        except Lost as lost:
            return f"seed {seed}: {lost}"
    return None


def test_no_crash_loses_what_was_acknowledged(
    told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path]
) -> None:
    """The log is the only copy of what the source no longer retains (hard cases L01 to L05, L12, L17, O01)."""
    hold_states(told(Recording), fresh, STATES)


@pytest.mark.long
def test_no_crash_of_many_loses_what_was_acknowledged(
    told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path]
) -> None:
    """The same, of more states."""
    hold_states(told(Recording), fresh, MANY)


def hold_states(disk: Recording, fresh: Callable[[], Path], states: int) -> None:
    """States that are taken in turn after each operation; every hundredth log is also written further."""
    recoveries = Recoveries(fresh)
    built = 0
    # The fewer writes a log makes, the more often a state comes up again; then more of them are built.
    while built < states or (recoveries.distinct <= states // 3 and built < 4 * states):
        tree, promise = crashed(disk, built)
        try:
            recoveries.hold(tree, promise, goes_on=built % 100 == 0)
        except Lost as lost:
            pytest.fail(f"state of seed {built}: {lost}")
        built += 1
    print(f"{built} states after {len(disk.operations)} operations, {recoveries.distinct} different ones")
    assert recoveries.distinct > states // 3, "the states are hardly different from each other"


def test_crash_during_recovery_loses_nothing_either(
    told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path], tmp_path: Path
) -> None:
    """A machine that goes down once often goes down again while it starts (hard cases L01, L12)."""
    disk = told(Recording)
    recoveries = Recoveries(fresh)
    for seed in range(1, 2 + STATES // 100):
        tree, promise = crashed(disk, seed * 7919)
        (tmp_path / f"again{seed}").mkdir()
        again = Recording.from_tree(tmp_path / f"again{seed}", tree)
        story = Story(again, random.Random(seed))
        story.append(2)
        story.cut()
        story.sync()
        story.seal()
        story.kill()
        for inner in range(15):
            inner_seed = seed * 1000 + inner * (1 + len(again.operations) // 15)
            state, kept = crashed(again, inner_seed, promise)
            try:
                recoveries.hold(state, kept, goes_on=False)
            except Lost as lost:
                pytest.fail(f"state of seed {seed}, recovery's crash {inner_seed}: {lost}")


class NoFsync(Recording):
    """Planted: the journal is never synced."""

    def fsync(self, fd: int) -> None:
        if not self._path(fd).name.endswith(".journal"):
            super().fsync(fd)

    def _path(self, fd: int) -> Path:
        return next(p for p, inode in self._inodes.items() if inode == self._of_fd[fd])


class NoSpoolFsync(NoFsync):
    """Planted: a spool that a durable cut attaches is not synced."""

    def fsync(self, fd: int) -> None:
        if not self._path(fd).name.endswith(".spool"):
            Recording.fsync(self, fd)


class NoDirectoryFsync(Recording):
    """Planted: a new journal's name is not synced."""

    def fsync_dir(self, path: Path) -> None:
        if path.name != "journal":
            super().fsync_dir(path)


class NoSegmentNameFsync(Recording):
    """Planted: the journal is removed before the segment's name is durable."""

    def fsync_dir(self, path: Path) -> None:
        if path.name != "segments":
            super().fsync_dir(path)


class NoParquetFsync(NoFsync):
    """Planted: a segment gets its name before its files are durable."""

    def fsync(self, fd: int) -> None:
        path = self._path(fd)
        if not path.name.endswith(".parquet") or path.parent.name == "spool":
            Recording.fsync(self, fd)


class NoRowFileFsync(NoFsync):
    """Planted: the journal names a file with rows that is not synced."""

    def fsync(self, fd: int) -> None:
        path = self._path(fd)
        if not path.name.endswith(".parquet") or path.parent.name != "spool":
            Recording.fsync(self, fd)


class NoNameBesideFsync(Recording):
    """Planted: the names of spools and files with rows are not synced."""

    def fsync_dir(self, path: Path) -> None:
        if path.name != "spool":
            super().fsync_dir(path)


PLANTED = (
    NoFsync,
    NoSpoolFsync,
    NoDirectoryFsync,
    NoSegmentNameFsync,
    NoParquetFsync,
    NoRowFileFsync,
    NoNameBesideFsync,
)


@pytest.mark.spread(1)
@pytest.mark.parametrize("planted", PLANTED)
def test_omitted_sync_is_found(
    planted: type[Recording], told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path]
) -> None:
    """A check that cannot fail proves nothing: each sync is omitted once (hard case L04)."""
    assert first_lost(told(planted), fresh, PLANTED_STATES) is not None


def test_cut_in_front_of_its_rows_is_found(
    told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: rows and cut change places, so that a torn write shows a cut without its rows (hard case L02)."""
    held: list[Numbered] = []
    put = FileLog.append
    cut = FileLog.cut

    def append_later(log: FileLog, numbered: Numbered) -> None:
        held.append(numbered)

    def cut_first(log: FileLog, checkpoint: Checkpoint) -> None:
        encoder = log._journal.encoder
        encoder.cut(checkpoint, log._durable.end)
        log._write()
        encoded = encoder.cut
        encoder.cut = lambda *_: None  # type: ignore[method-assign]
        for numbered in held:
            put(log, numbered)
        held.clear()
        cut(log, checkpoint)
        encoder.cut = encoded  # type: ignore[method-assign]

    monkeypatch.setattr(FileLog, "append", append_later)
    monkeypatch.setattr(FileLog, "cut", cut_first)
    (root := fresh()).joinpath("disk").mkdir()
    disk = Recording(root / "disk")
    story = Story(disk, random.Random(1))
    for rows in (3, 5, 2):
        story.append(rows)
        story.cut()
        story.sync()
    story.kill()
    monkeypatch.undo()
    assert first_lost(disk, fresh, PLANTED_STATES) is not None


def test_frames_without_checksums_are_found(
    told: Callable[[type[Recording]], Recording], fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a frame counts when its full length is present; zeros and half-written rows then count too (hard case
    L03).
    """

    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    disk = told(Recording)
    monkeypatch.setattr(framing, "_checksum", lambda *_: Anything())
    assert first_lost(disk, fresh, PLANTED_STATES) is not None
