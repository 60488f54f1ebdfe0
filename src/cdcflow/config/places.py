"""Folders that the settings name: whether this process may write there, and what an operator can do if not.

A command checks them before it begins, so that the error names the setting. An error that occurs later (a folder of
another user further down, a disk that became read-only) keeps its path and gets the same remedies.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cdcflow.config.logs import FileLog
from cdcflow.config.whole import Config
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable

_DEPTH = 3
"""How many levels of folders in a warehouse are checked: those of schemas, of tables, and of the tables' files."""
_ROOM = (errno.ENOSPC, errno.EDQUOT)
_RIGHTS = (errno.EACCES, errno.EPERM)
_NO_FOLDER = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP)


def log_places(config: Config) -> dict[str, Path]:
    """Return the folders that a capture writes into, keyed by setting."""
    if not isinstance(config.log, FileLog):
        kafka = config.log.kafka
        history = {} if kafka.history is None or config.log.history_url else {"log.kafka.history": config.log.history}
        return {"log.kafka.work": config.log.folder, **history}
    objects = config.log.objects
    places = {"log.path" if config.log.has_directory else "log.objects.cache": config.log.folder}
    if objects is not None and objects.cache is not None:
        places["log.objects.cache"] = objects.cache
    return places


def warehouse_places(config: Config) -> dict[str, Path]:
    """Return the folder of the tables; empty if they are in an object store."""
    place = config.merge.warehouse
    return {"merge.warehouse": place} if isinstance(place, Path) else {}


def check_writable(places: Mapping[str, Path]) -> None:
    """Check that files can be created in each of these folders and in their existing subfolders, and that a missing
    folder can be created. Nothing is created.

    Raises:
        ConfigurationError: a folder is not writable; the message names the setting, the path and the system's error.
        SinkUnavailable: its disk is full.
    """
    for setting, place in places.items():
        try:
            nearest = _nearest(place)
            depth = 0 if nearest != place else _DEPTH if setting == "merge.warehouse" else 1
            for folder in _folders(nearest, depth):
                _try(folder)
        except OSError as error:
            raise of_system(error, setting, place) from error


def of_system(error: OSError, setting: str | None = None, place: Path | None = None) -> CdcflowError:
    """Return the error for a system error about a path, with its remedy. `setting`: the setting that named the path;
    `None`: a command of cdcflow met the error elsewhere."""
    named = error.filename if isinstance(error.filename, str | os.PathLike) else None
    path = Path(named if named is not None else place or ".")
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    # If the error has no path, a library's own text names it; the system's own text only describes the failure.
    text = f"{path}: {os.strerror(error.errno or 0)} ({code})" if named or place else f"{error.strerror} ({code})"
    message = f"{setting} {place}: {text}" if setting and path != place else f"{setting or 'reading or writing'} {text}"
    if error.errno in _ROOM:
        return SinkUnavailable(message, remedy="make room; nothing that was acknowledged is lost", runbook="disk-full")
    return ConfigurationError(message, remedy=_remedy(error, path, setting), runbook="log-not-writable")


@contextmanager
def naming_paths() -> Iterator[None]:
    """Turn a system error about a path into an error for the operator: it is not a bug in cdcflow."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if not is_about_a_path(error):
            raise
        raise of_system(error) from error


def is_about_a_path(error: OSError) -> bool:
    """Whether the error is about access to a file or folder, and names it."""
    known = (*_ROOM, *_RIGHTS, *_NO_FOLDER, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, errno.EMFILE)
    return error.errno in known and error.filename is not None


def _nearest(place: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    for one in (place, *place.parents):
        try:
            found = one.stat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(one))
        return one
    return place


def _folders(place: Path, depth: int) -> Iterator[Path]:
    yield place
    if depth:
        with os.scandir(place) as found:
            inside = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
        for folder in inside:
            yield from _folders(folder, depth - 1)


def _try(folder: Path) -> None:
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return
    # The system's own error: opening a file distinguishes a read-only disk from a missing right.
    probe = folder / f".cdcflow-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
        os.scandir(folder).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def _remedy(error: OSError, path: Path, setting: str | None) -> str:
    other = f", or name another folder in {setting}" if setting else ", or name another path in the settings"
    if error.errno in _RIGHTS:
        return f"this process runs as {_user(os.geteuid())}; {_owner(path)}: give it the right to write there{other}"
    if error.errno == errno.EROFS:
        return f"the file system is mounted read-only: mount it writable{other}"
    if error.errno in _NO_FOLDER:
        return f"a file that is not a folder is in its place: move it{other}"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter path" + other.removeprefix(",")
    if error.errno == errno.EMFILE:
        return "let the process open more files (ulimit -n, LimitNOFILE of systemd)"
    return f"see what the kernel logged about the disk (dmesg){other}"


def _owner(path: Path) -> str:
    """Return the owner of the nearest existing folder."""
    for one in (path, *path.parents):
        try:
            found = one.stat()
        except OSError:
            continue
        return f"{one} belongs to {_user(found.st_uid)} ({stat.filemode(found.st_mode)})"
    return "its owner cannot be seen"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
