"""Disks for tests: one that records all operations and can be crashed at any point, and one that fails.

What a crash may leave follows from the requested operations, and little else is promised: a file's content is that of
its last fsync, plus any part of any write since, in any order; a directory has the names of its last fsync, plus any of
the changes since. A rename is one change. `Recording.after` gives one of those states at random.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdcflow.log.disk.layer import OsLayer, Part

SECTOR = 64
"""The smallest piece of a write that reaches the disk alone. Real ones are larger; smaller is harder to survive."""


@dataclass(frozen=True, slots=True)
class Write:
    inode: int
    at: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Fsync:
    inode: int


@dataclass(frozen=True, slots=True)
class FsyncDir:
    inode: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory's names change: `put` name → inode (or None), and `gone` vanishes; both at once."""

    directory: int
    put: tuple[str, int] | None
    gone: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """Data that the test associates with this point."""

    what: object


Operation = Write | Truncate | Fsync | FsyncDir | Entry | Note


@dataclass(slots=True)
class Tree:
    """A state of the disk: file contents and directory names by inode; inode 0 is the top."""

    files: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})

    def put_into(self, path: Path) -> None:
        """Create this state in an empty directory."""
        self._put(0, path)

    def key(self, inode: int = 0) -> object:
        """Equal for trees with equal names and contents."""
        if inode in self.directories:
            return tuple(sorted((name, self.key(i)) for name, i in self.directories[inode].items()))
        return self.files.get(inode, b"")

    def _put(self, inode: int, path: Path) -> None:
        for name, child in self.directories[inode].items():
            if child in self.directories:
                (path / name).mkdir()
                self._put(child, path / name)
            else:
                (path / name).write_bytes(self.files.get(child, b""))


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is durable at one point, and by inode what is not yet."""

    durable: Tree
    data: dict[int, list[Write | Truncate]]
    names: dict[int, list[Entry]]

    def then(self, operation: Operation) -> _Moment:
        durable, data, names = self.durable, dict(self.data), dict(self.names)
        match operation:
            case Write(inode) | Truncate(inode):
                data[inode] = [*data.get(inode, []), operation]
            case Entry(directory):
                names[directory] = [*names.get(directory, []), operation]
            case Fsync(inode) if inode in data:
                durable = Tree(dict(durable.files), durable.directories)
                _apply_data(durable, data.pop(inode))
            case FsyncDir(inode) if inode in names:
                durable = Tree(durable.files, {i: dict(n) for i, n in durable.directories.items()})
                _apply_names(durable, names.pop(inode))
            case _:
                pass
        return _Moment(durable, data, names)


class Recording(OsLayer):
    """Does everything for real under `root`, and records it. `root` itself counts as durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self._inodes: dict[Path, int] = {root: 0}
        self._next = 1
        self._of_fd: dict[int, int] = {}
        self._directories = {0}
        self._start = Tree()
        self._moments: list[_Moment] = []

    @classmethod
    def from_tree(cls, root: Path, tree: Tree) -> Recording:
        """Start from a state that is on the disk already, all of it durable. `root` is empty."""
        tree.put_into(root)
        recording = cls(root)
        recording._start = tree
        recording._adopt(0, root)
        recording._next = max([0, *tree.files, *tree.directories]) + 1
        return recording

    def note(self, what: object) -> None:
        self.operations.append(Note(what))

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._of_fd[fd] = self._new(path)
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._of_fd[fd] = self._inodes[path]
        return fd

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        content = b"".join(parts)
        at = os.fstat(fd).st_size
        done = super().write(fd, [content])
        self.operations.append(Write(self._of_fd[fd], at, content[:done]))
        return done

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.operations.append(Truncate(self._of_fd[fd], size))

    def fsync(self, fd: int) -> None:
        self.operations.append(Fsync(self._of_fd[fd]))

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._of_fd[fd]

    def fsync_dir(self, path: Path) -> None:
        self.operations.append(FsyncDir(self._inodes.get(path, 0)))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        moved = {p: i for p, i in self._inodes.items() if p == source or source in p.parents}
        for path, inode in moved.items():
            del self._inodes[path]
            self._inodes[target / path.relative_to(source)] = inode
        put = (target.name, self._inodes[target])
        self.operations.append(Entry(self._inodes[source.parent], put, source.name))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._inodes[target] = self._inodes[source]
        self.operations.append(Entry(self._inodes[target.parent], (target.name, self._inodes[target]), None))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._gone(path)

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._directories.add(self._new(path))

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self._gone(path)

    def after(self, count: int, chance: random.Random) -> Tree:
        """One of the states that a crash may leave after the first `count` operations."""
        moment = self._moment(count)
        tree = Tree(dict(moment.durable.files), {i: dict(n) for i, n in moment.durable.directories.items()})
        manner = chance.choice(_MANNERS)
        for data in moment.data.values():
            _apply_data(tree, manner(data, chance))
        for names in moment.names.values():
            _apply_names(tree, _some(names, chance))
        return tree

    def _moment(self, count: int) -> _Moment:
        if not self._moments:
            start = Tree(dict(self._start.files), {i: dict(n) for i, n in self._start.directories.items()})
            start.directories.update({i: {} for i in self._directories if i not in start.directories})
            self._moments.append(_Moment(start, {}, {}))
        for operation in self.operations[len(self._moments) - 1 : count]:
            self._moments.append(self._moments[-1].then(operation))
        return self._moments[count]

    def noted(self, count: int) -> list[object]:
        """The notes taken during the first `count` operations."""
        return [o.what for o in self.operations[:count] if isinstance(o, Note)]

    def _new(self, path: Path) -> int:
        inode, self._next = self._next, self._next + 1
        self._inodes[path] = inode
        self.operations.append(Entry(self._inodes[path.parent], (path.name, inode), None))
        return inode

    def _gone(self, path: Path) -> None:
        del self._inodes[path]
        self.operations.append(Entry(self._inodes[path.parent], None, path.name))

    def _adopt(self, inode: int, path: Path) -> None:
        self._inodes[path] = inode
        if inode in self._start.directories:
            self._directories.add(inode)
            for name, child in self._start.directories[inode].items():
                self._adopt(child, path / name)


def _apply_data(tree: Tree, changes: Sequence[Write | Truncate]) -> None:
    for change in changes:
        content = bytearray(tree.files.get(change.inode, b""))
        match change:
            case Write(_, at, new):
                content.extend(bytes(max(0, at + len(new) - len(content))))
                content[at : at + len(new)] = new
            case Truncate(_, size):
                content = content[:size]
        tree.files[change.inode] = bytes(content)


def _apply_names(tree: Tree, changes: Sequence[Entry]) -> None:
    for change in changes:
        names = tree.directories.setdefault(change.directory, {})
        if change.gone is not None:
            names.pop(change.gone, None)
        if change.put is not None:
            names[change.put[0]] = change.put[1]


def _some(changes: list[Entry], chance: random.Random) -> list[Entry]:
    match chance.randrange(4):
        case 0:
            return []
        case 1:
            return changes
        case 2:
            return changes[: chance.randint(0, len(changes))]
        case _:
            return [c for c in changes if chance.random() < 0.5]


def _none(_: list[Write | Truncate], __: random.Random) -> list[Write | Truncate]:
    return []


def _all(changes: list[Write | Truncate], _: random.Random) -> list[Write | Truncate]:
    return changes


def _cut_short(changes: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    """A beginning, and of the change after it a beginning too."""
    count = chance.randint(0, len(changes))
    torn = [
        Write(change.inode, change.at, change.content[: chance.randint(0, len(change.content))])
        for change in changes[count : count + 1]
        if isinstance(change, Write)
    ]
    return [*changes[:count], *torn]


def _out_of_order(changes: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    """Whole writes, but not all of them: a later one may exist without an earlier one."""
    return [c for c in changes if chance.random() < 0.6]


def _sectors(changes: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    """Pieces of writes, any of them; the file has its full length."""
    share = chance.choice((0.5, 0.9, 0.98))
    kept: list[Write | Truncate] = []
    for change in changes:
        if isinstance(change, Truncate):
            kept.append(change)
            continue
        end = change.at + len(change.content)
        kept.append(Write(change.inode, end, b""))
        at = change.at
        while at < end:
            after = min(end, at + SECTOR - at % SECTOR)
            if chance.random() < share:
                kept.append(Write(change.inode, at, change.content[at - change.at : after - change.at]))
            at = after
    return kept


_MANNERS: tuple[Callable[[list[Write | Truncate], random.Random], list[Write | Truncate]], ...] = (
    _none,
    _all,
    _cut_short,
    _cut_short,
    _out_of_order,
    _sectors,
    _sectors,
    _sectors,
)


class Unsynced(OsLayer):
    """The operating system's files without waiting for any disk: for tests that do not crash."""

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class Counting(Unsynced):
    """The operating system's files without waiting for any disk; counts what a disk would have had to do."""

    def __init__(self) -> None:
        self.fsyncs = 0
        self.bytes = 0

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        done = super().write(fd, parts)
        self.bytes += done
        return done

    def fsync(self, fd: int) -> None:
        self.fsyncs += 1

    def fsync_dir(self, path: Path) -> None:
        self.fsyncs += 1


@dataclass
class Failing(OsLayer):
    """Raises on request: `fails` gets each call's name and path, and returns an error or None.

    `bytes_per_write_max` makes every write a short one.
    """

    fails: Callable[[str, Path], OSError | None] = lambda _, __: None
    bytes_per_write_max: int | None = None
    calls: int = 0

    def __post_init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def create(self, path: Path) -> int:
        self._ask("create", path)
        fd = super().create(path)
        self._paths[fd] = path
        return fd

    def open(self, path: Path) -> int:
        self._ask("open", path)
        fd = super().open(path)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        if self.bytes_per_write_max is not None:
            parts = [b"".join(parts)[: self.bytes_per_write_max]]
        self._ask("write", self._paths[fd])
        return super().write(fd, parts)

    def fsync(self, fd: int) -> None:
        self._ask("fsync", self._paths[fd])

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._paths[fd]

    def fsync_dir(self, path: Path) -> None:
        self._ask("fsync_dir", path)

    def rename(self, source: Path, target: Path) -> None:
        self._ask("rename", target)
        super().rename(source, target)
        self._paths.update({fd: target for fd, path in self._paths.items() if path == source})

    def link(self, source: Path, target: Path) -> None:
        self._ask("link", target)
        super().link(source, target)

    def mkdir(self, path: Path) -> None:
        self._ask("mkdir", path)
        super().mkdir(path)

    def unlink(self, path: Path) -> None:
        self._ask("unlink", path)
        super().unlink(path)

    def _ask(self, call: str, path: Path) -> None:
        self.calls += 1
        error = self.fails(call, path)
        if error is not None:
            raise error
