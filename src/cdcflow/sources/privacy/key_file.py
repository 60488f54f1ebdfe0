"""The keys of persons in a file: records of 128 bytes, which `cat` shows.

    cdcflow person keys 1 <id of the file>
    key <person> <wrapped key>          appended, and fsynced before anything that the key encrypts is stored
    era <person>                        appended by `erase`, which then overwrites the wrapped key in its record

A record never crosses a sector of the disk. An erasure may end anywhere: once its `era` is durable, the key counts as
destroyed, and the next process that writes here overwrites what is left of it.

Processes exclude each other with a lock on the file: shared while keys are in use, exclusive to append and erase. So an
`erase` waits for the batch that another process is encrypting, and that process knows of the erasure before its next
batch. The file is only changed in place: a process that has it open would not notice another file under its name, so
one that finds another file there stops.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, link_or_copy, storing, syncing
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.privacy.kernels import from_base64, to_base64
from cdcflow.sources.privacy.person_keys import Wrap, missing_person_keys
from cdcflow.sources.privacy.secret_keys import MAKER_DIGITS, PERSON_DIGITS

_WIDTH = 128
_HEADER, _KEY, _ERASED = b"cdcflow person keys 1 ", b"key ", b"era "
_PERSON_BYTES = MAKER_DIGITS + 1 + PERSON_DIGITS
_WRAPPED_AT, _WRAPPED_BYTES = 4 + _PERSON_BYTES + 1, 64
_BLANK = b"-" * _WRAPPED_BYTES
_PERSON = np.dtype(f"S{_PERSON_BYTES}")
_RECORD = np.dtype(
    {
        "names": ["kind", "person", "wrapped", "end"],
        "formats": ["S4", f"S{_PERSON_BYTES}", f"S{_WRAPPED_BYTES}", "S1"],
        "offsets": [0, 4, _WRAPPED_AT, _WIDTH - 1],
        "itemsize": _WIDTH,
    }
)
Records = np.ndarray[tuple[int], np.dtype[np.void]]
Persons = np.ndarray[tuple[int], np.dtype[np.bytes_]]

_READ_BYTES = 1 << 24
_RECENT_MAX = 4096
_WRAPPED_MAX = 65536


class KeyFile:
    """Implements `cdcflow.sources.privacy.person_keys.PersonKeys` in a file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._known = _KnownRecords()

    def identity(self) -> str:
        if self._fd is None and not self._path.exists():
            return ""
        with self._holding_lock(fcntl.LOCK_SH):
            return self._known.id

    def create(self) -> None:
        if self._path.exists():
            return
        with storing(f"creating {self._path}"):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            made = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.new")
            fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _write(fd, _record_of(_HEADER + secrets.token_hex(8).encode()), 0)
                _sync(fd, made)
                with contextlib.suppress(FileExistsError):  # another process was quicker
                    link_or_copy(OS_LAYER, made, self._path)
            finally:
                os.close(fd)
                made.unlink()
        with syncing(self._path.parent):
            OS_LAYER.fsync_dir(self._path.parent)

    @contextlib.contextmanager
    def use(self, persons: Sequence[str], new: Wrap) -> Iterator[Mapping[str, bytes | None]]:
        if not persons:
            yield {}
            return
        wanted = [person.encode() for person in persons]
        with self._holding_lock(fcntl.LOCK_SH) as fd:
            if self._known.is_settled and not self._known.unknown(wanted):
                yield dict(zip(persons, self._wrapped_keys(fd, wanted), strict=True))
                return
        with self._holding_lock(fcntl.LOCK_EX) as fd:
            self._settle(fd)
            records = [_KEY + p + b" " + to_base64(new(p.decode())).encode() for p in self._known.unknown(wanted)]
            self._append(fd, records)
            yield dict(zip(persons, self._wrapped_keys(fd, wanted), strict=True))

    def find(self, person: str) -> bytes | None:
        with self._holding_lock(fcntl.LOCK_SH) as fd:
            if self._known.unknown([person.encode()]):
                raise KeyError(person)
            return self._wrapped_keys(fd, [person.encode()])[0]

    def erase(self, persons: Sequence[str]) -> None:
        with self._holding_lock(fcntl.LOCK_EX) as fd:
            self._settle(fd)
            wanted = dict.fromkeys(person.encode() for person in persons)
            self._append(fd, [_ERASED + person for person in wanted if person not in self._known.erased])
            self._settle(fd)

    def makers(self) -> frozenset[str]:
        with self._holding_lock(fcntl.LOCK_SH):
            return self._known.makers()

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
            self._fd, self._known = None, _KnownRecords()

    def __del__(self) -> None:
        self.close()

    # ── the file ────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _holding_lock(self, kind: int) -> Iterator[int]:
        """Hold a lock on the file, with all of its records read."""
        with self._lock:
            if self._fd is None:
                self._fd = self._open_file()
            fd = self._fd
            fcntl.flock(fd, kind)
            try:
                self._check_same(fd)
                self._catch_up(fd)
                yield fd
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def _open_file(self) -> int:
        with storing(f"opening the keys of persons in {self._path}"):
            try:
                return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing_person_keys(f"the keys of persons are not in {self._path}") from None

    def _check_same(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(fd)):
                return
        raise missing_person_keys(
            f"the file with the keys of persons, {self._path}, was removed or replaced while it was in use"
        )

    def _catch_up(self, fd: int) -> None:
        """Read the records that other processes appended. Those of a writer that was killed may be incomplete at the
        end: they count as not written."""
        size = os.fstat(fd).st_size
        if size == self._known.seen:
            return
        # Sync before anything relies on these records: the process that appended them may not have synced them.
        _sync(fd, self._path)
        while self._known.size < size:
            with storing(f"reading {self._path}"):
                data = os.pread(fd, min(_READ_BYTES, size - self._known.size), self._known.size)
            if not self._known.read(data):
                with storing(f"reading {self._path}"):
                    self._known.check_end(os.pread(fd, size - self._known.size, self._known.size), self._path)
                break
        self._known.seen = size

    def _append(self, fd: int, records: Sequence[bytes]) -> None:
        """Append records, durably."""
        if not records:
            return
        data = b"".join(map(_record_of, records))
        with storing(f"writing {self._path}"):
            _write(fd, data, self._known.size)
        _sync(fd, self._path)
        self._known.read(data)
        self._known.seen = self._known.size

    def _settle(self, fd: int) -> None:
        """Overwrite the keys of erased persons, durably, and remove an incomplete end."""
        if self._known.is_settled:
            return
        with storing(f"writing {self._path}"):
            for place in self._known.places(list(self._known.unsettled)).tolist():
                _write(fd, _BLANK, place * _WIDTH + _WRAPPED_AT)
            os.ftruncate(fd, self._known.size)
        _sync(fd, self._path)
        self._known.unsettled.clear()
        self._known.seen = self._known.size

    def _wrapped_keys(self, fd: int, persons: Sequence[bytes]) -> list[bytes | None]:
        """Return the wrapped keys of known persons; None for an erased person."""
        known = self._known.wrapped
        if len(known) > _WRAPPED_MAX:
            known.clear()
        lacking = [p for p in persons if p not in known and p not in self._known.erased]
        with storing(f"reading {self._path}"):
            for person, place in zip(lacking, self._known.places(lacking).tolist(), strict=True):
                known[person] = from_base64(os.pread(fd, _WRAPPED_BYTES, place * _WIDTH + _WRAPPED_AT).decode())
        return [None if p in self._known.erased else known[p] for p in persons]


class _KnownRecords:
    """The records of the file that a process has read: `size` bytes of whole records.

    `erased` are persons without a key, `unsettled` those of them whose key is still in its record, and `wrapped` some
    of the wrapped keys. Most persons are in a sorted array, with the numbers of their records: a dictionary takes four
    times the memory.
    """

    def __init__(self) -> None:
        self.id = ""
        self.size = self.seen = 0
        self.erased: set[bytes] = set()
        self.unsettled: set[bytes] = set()
        self.wrapped: dict[bytes, bytes] = {}
        self._blank: set[bytes] = set()
        self._sorted: Persons = np.empty(0, _PERSON)
        self._numbers = np.empty(0, np.int64)
        self._recent: dict[bytes, int] = {}

    @property
    def is_settled(self) -> bool:
        return not self.unsettled and self.size == self.seen

    def read(self, data: bytes) -> int:
        """Add the whole records that follow; return how many there were."""
        records = np.frombuffer(data, _RECORD, len(data) // _WIDTH)
        if not self.size and not _is_header(data):
            return 0
        first = 0 if self.size else 1
        if first:
            self.id = data[len(_HEADER) : _WIDTH].decode().strip()
        count = first + int(_leading(_are_whole(records[first:])))
        new, numbers = records[first:count], np.arange(first, count) + self.size // _WIDTH
        is_key = new["kind"] == _KEY
        self._add(new["person"][is_key], numbers[is_key])
        self._blank.update(new["person"][is_key & (new["wrapped"] == _BLANK)].tolist())
        for person in new["person"][~is_key].tolist():
            self.erased.add(person)
            self.wrapped.pop(person, None)
            if person not in self._blank and self._number(person) is not None:
                self.unsettled.add(person)
        self.size += count * _WIDTH
        return count

    def check_end(self, data: bytes, path: Path) -> None:
        """Check the bytes after the last whole record. Raise InvariantViolated if whole records follow: the file is
        damaged then."""
        records = np.frombuffer(data, _RECORD, len(data) // _WIDTH)
        if not self.size or _are_whole(records).any():
            raise InvariantViolated(
                f"reading the keys of persons in {path}: a record is damaged",
                remedy="restore the file from a copy, then repeat the erasures that are later than the copy",
                runbook="person-keys",
            )

    def unknown(self, persons: Sequence[bytes]) -> list[bytes]:
        """Return the persons among `persons` that have no key yet and were not erased."""
        unsure = [person for person in persons if person not in self.wrapped and person not in self.erased]
        return [person for person, place in zip(unsure, self.places(unsure).tolist(), strict=True) if place < 0]

    def places(self, persons: Sequence[bytes]) -> Int64s:
        """Return the numbers of the records with the keys of these persons; -1 for a person without a record."""
        if not len(self._sorted):
            return np.fromiter((self._recent.get(person, -1) for person in persons), np.int64, len(persons))
        wanted = np.array(persons, _PERSON)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found = np.where(self._sorted[at] == wanted, self._numbers[at], -1)
        for n in np.flatnonzero(found < 0).tolist():
            found[n] = self._recent.get(persons[n], -1)
        return found

    def makers(self) -> frozenset[str]:
        """Return the fingerprints of the policies' keys that wrapped the remaining keys."""
        every = np.concatenate([self._sorted, np.array(list(self._recent), _PERSON)])
        left = every[~np.isin(every, np.array(list(self.erased), _PERSON))]
        return frozenset(maker.decode() for maker in np.unique(left.astype(f"S{MAKER_DIGITS}")).tolist())

    def _number(self, person: bytes) -> int | None:
        [place] = self.places([person]).tolist()
        return None if place < 0 else place

    def _add(self, persons: Persons, numbers: Int64s) -> None:
        self._recent.update(zip(persons.tolist(), numbers.tolist(), strict=True))
        if len(self._recent) <= max(_RECENT_MAX, len(self._sorted) // 8):
            return
        every = np.concatenate([self._sorted, np.array(list(self._recent), _PERSON)])
        order = np.argsort(every, kind="stable")
        self._numbers = np.concatenate([self._numbers, np.fromiter(self._recent.values(), np.int64)])[order]
        self._sorted = every[order]
        self._recent.clear()


def _is_header(data: bytes) -> bool:
    return data.startswith(_HEADER) and data[_WIDTH - 1 : _WIDTH] == b"\n"


def _are_whole(records: Records) -> Bools:
    whole: Bools = np.isin(records["kind"], (_KEY, _ERASED)) & (records["end"] == b"\n")
    return whole


def _leading(flags: Bools) -> int:
    """Return how many of the flags are true before the first that is not."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _record_of(record: bytes) -> bytes:
    return record.ljust(_WIDTH - 1) + b"\n"


def _write(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, at)
        left, at = left[done:], at + done


def _sync(fd: int, path: Path) -> None:
    with syncing(path):
        os.fsync(fd)
