"""A disk under a folder that loses what was not synced when the power goes.

It sees each fsync of this process, and not those of others (a JVM, SQLite): a file that is durable for another reason
than cdcflow's fsync is one that it may lose. SQLite keeps its files by its own protocol: they are left unchanged.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

SQLITE = "_cdcflow_catalog.db"
_numbers = itertools.count(1 << 20, 1 << 10)
"""For SQLite files: each commit to one counts one up."""
Names = dict[str, int]
"""A folder's names, each with the number of its file or folder."""


@dataclass
class Disk:
    """The contents of a folder at one point in time."""

    root: int
    folders: dict[int, Names] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, top: Path) -> Disk:
        found = cls(top.stat().st_ino)
        for place, _, _ in os.walk(top):
            found.folders[os.stat(place).st_ino] = names_of(Path(place))
            for name in os.listdir(place):
                path = Path(place, name)
                if path.is_file():
                    found.files[path.stat().st_ino] = path.read_bytes()
        return found

    def copy(self) -> Disk:
        return Disk(self.root, dict(self.folders), dict(self.files))


@dataclass(frozen=True)
class Moment:
    """What is durable, and what exists."""

    durable: Disk
    there: Disk

    def left(self, chance: random.Random | None) -> Disk:
        """What a power cut leaves. Without `chance` only what was synced; with it, also a random part of the rest."""
        found = self.durable.copy()
        for folder, names in self.there.folders.items():
            known = self.durable.folders.get(folder, {})
            changed = {n for n in {*names, *known} if names.get(n) != known.get(n)}
            kept = dict(known)
            for name in changed:
                if name.startswith(SQLITE) or (chance is not None and chance.random() < 0.5):
                    kept.pop(name, None)
                    if name in names:
                        kept[name] = names[name]
            found.folders[folder] = kept
            for name, number in names.items():
                content = self.there.files.get(number, b"")
                if name.startswith(SQLITE):
                    found.files[number] = content
                elif content != self.durable.files.get(number) and chance is not None:
                    end = chance.choice((0, len(content) // 2, len(content)))
                    found.files[number] = content[:end]
        return found

    def put_into(self, top: Path, chance: random.Random | None = None) -> None:
        """Turn a folder into what a power cut left. SQLite's file stays the same file, which a JVM may have open."""
        for path in list(top.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith(SQLITE):
                path.unlink()
        left = self.left(chance)
        _put(left, left.root, top)


def _put(disk: Disk, number: int, into: Path) -> None:
    for name, child in disk.folders.get(number, {}).items():
        if child in disk.folders:
            (into / name).mkdir()
            _put(disk, child, into / name)
        else:
            with (into / name).open("r+b" if (into / name).exists() else "wb") as file:
                content = disk.files.get(child, b"")
                file.write(_as_another(content) if name.startswith(SQLITE) and "-" not in name else content)
                file.truncate()


def _as_another(content: bytes) -> bytes:
    """A SQLite file that SQLite cannot mistake for the one it has in memory: two numbers in its header differ.

    A JVM that keeps running, as no JVM does after a power cut, would read the old file if by chance they were the same.
    """
    if len(content) < 96:
        return content
    number = next(_numbers).to_bytes(4, "big")
    return content[:24] + number + content[28:92] + number + content[96:]


def names_of(folder: Path) -> Names:
    return {name: os.stat(folder / name).st_ino for name in os.listdir(folder)}


class PowerCuts:
    """Watches a folder, all of which is durable at first.

    `moments`: its state after each `every`-th fsync, and the last one.
    """

    def __init__(self, top: Path, every: int = 1) -> None:
        self._top = top
        self._every = every
        self._durable = Disk.of(top)
        self._count = 0
        self.moments: list[Moment] = []

    def _synced(self, fd: int) -> None:
        path, found = Path(os.readlink(f"/proc/self/fd/{fd}")), os.fstat(fd)
        if self._top != path and self._top not in path.parents:
            return
        if stat.S_ISDIR(found.st_mode):
            self._durable.folders[found.st_ino] = names_of(path)
        else:
            self._durable.files[found.st_ino] = path.read_bytes()
        self._count += 1
        if self._count % self._every == 0:
            self.look()

    def look(self) -> None:
        self.moments.append(Moment(self._durable.copy(), Disk.of(self._top)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        real = os.fsync

        turn = threading.Lock()

        def fsync(fd: int) -> None:
            real(fd)
            with turn:  # several threads sync files at the same time
                self._synced(fd)

        with patch("os.fsync", fsync):
            yield
        self.look()


__all__ = ["Moment", "PowerCuts"]
