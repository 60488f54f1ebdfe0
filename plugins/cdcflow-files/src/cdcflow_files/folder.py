"""The files of a folder that are complete, as items of a poll.

A file is complete when its size and time of change are the same in two polls, and it is not one that programs write
before they rename it: names that begin with a dot or an underscore, or end with .tmp, .part or ~. A program that
pauses longer than two polls while it writes must write under such a name, and rename the file when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from cdcflow.errors import SourceUnavailable
from cdcflow.ports import Finding
from cdcflow.sources.polled import Changing, Item, Unfit
from cdcflow_files.formats import format_of, read_file
from cdcflow_files.items import check_size, is_hidden, make_item, table_name
from cdcflow_files.settings import FilesSettings


class Folder:
    """Implements `cdcflow.sources.polled.Poller` for a folder."""

    def __init__(self, settings: FilesSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._before: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self._folder.name

    def items(self) -> Sequence[Item]:
        """The complete files, in the order of their times of change."""
        try:
            found = sorted(_files(self._folder, ""))
        except OSError as error:
            raise SourceUnavailable(
                f"listing {self._folder}: {error.strerror}",
                remedy="check source.folder, and that cdcflow may read it",
                runbook="source-unavailable",
            ) from error
        now = {path: print_ for _, path, print_ in found}
        complete = [path for _, path, print_ in found if self._before.get(path) == print_]
        self._before = now
        return [self._item(path, now[path]) for path in complete]

    def doctor(self) -> Iterator[Finding]:
        folder = self._folder
        if not folder.is_dir():
            yield Finding("error", "source.folder", f"{folder} is not a folder", "create it, or correct source.folder")
        elif not os.access(folder, os.R_OK | os.X_OK):
            yield Finding(
                "error", "source.folder", f"{folder} cannot be read", f"run chmod u+rx '{folder}' as its owner"
            )
        else:
            yield Finding("ok", "source.folder", f"{folder} can be read")
        if self._settings.state.resolve().is_relative_to(folder.resolve()):
            yield Finding("error", "source.state", "is in source.folder", "set source.state to a folder outside of it")

    def _item(self, path: str, print_: str) -> Item:
        return make_item(self._settings, table_name(path), path, print_, partial(self._read, path, print_))

    def _read(self, path: str, print_: str, types: Mapping[str, pa.DataType]) -> pa.Table:
        whole = self._folder / path
        try:
            check_size(self._settings, whole.stat().st_size)
            rows = read_file(whole, types, self._settings.csv)
            if _print_of(whole.stat()) != print_:
                raise Changing
        except FileNotFoundError:
            raise Changing from None
        except PermissionError:
            raise Unfit("it cannot be read: permission denied", f"give cdcflow the right to read {whole}") from None
        except OSError as error:
            raise SourceUnavailable(f"reading {whole}: {error.strerror}", runbook="source-unavailable") from error
        return rows


def _files(folder: Path, before: str) -> Iterator[tuple[int, str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            path = f"{before}{entry.name}"
            if entry.is_dir():
                yield from _files(folder / entry.name, f"{path}/")
            elif format_of(entry.name) is not None:
                try:
                    status = (folder / entry.name).stat()
                except FileNotFoundError:
                    continue  # it was renamed or removed
                yield status.st_mtime_ns, path, _print_of(status)


def _print_of(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
