"""Stored arrays are those of the data file, or they are computed again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdcflow.tables.local import stored_columns
from cdcflow.tables.local.stored_columns import FOLDER, StoredPlace, drop_stored, open_or_store

VALUES = [pa.array(["a", None, "ccc"]), pa.array(["d" * 5000])]


class Computed:
    """Counts how often arrays are computed."""

    def __init__(self, values: list[pa.Array] = VALUES) -> None:
        self.times = 0
        self._values = values

    def __call__(self) -> tuple[pa.DataType, Iterable[pa.Array], tuple[int, ...]]:
        self.times += 1
        return pa.string(), self._values, (7, -1)


@pytest.fixture
def place(tmp_path: Path) -> StoredPlace:
    data = tmp_path / "part-1.parquet"
    data.write_bytes(b"rows")
    return StoredPlace(tmp_path, data, (str(data), 4, "col-1"), "values as string")


def read(place: StoredPlace | None, computed: Computed) -> list[str | None]:
    found = open_or_store(place, computed)
    assert found.notes == (7, -1)
    return [value for part in found.parts for value in part.to_pylist()]


ALL = [value for part in VALUES for value in part.to_pylist()]


def test_next_process_reads_what_was_stored(place: StoredPlace) -> None:
    """A merge from cron is a new process each time, and decoding a column costs as much as computing the table."""
    first, second = Computed(), Computed()
    assert read(place, first) == read(place, second) == ALL
    assert (first.times, second.times) == (1, 0)
    assert [path.suffix for path in (place.folder / FOLDER).iterdir()] == [".arrow"]


def test_nothing_is_stored_without_a_folder() -> None:
    """A table in an object store has no folder here."""
    assert read(None, Computed()) == ALL


def _touch(place: StoredPlace) -> StoredPlace:
    os.utime(place.data, ns=(0, 1_000_000_007))
    return place


def _longer(place: StoredPlace) -> StoredPlace:
    place.data.write_bytes(b"rows of another program")
    return place


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[StoredPlace], StoredPlace]:
    def changed(place: StoredPlace) -> StoredPlace:
        place.path.write_bytes(change(place.path.read_bytes()))
        return place

    return changed


def _content_of_another(place: StoredPlace) -> StoredPlace:
    """Give the file of one column the name of the file of another."""
    other = replace(place, content=(str(place.data), 4, "col-2"))
    os.replace(place.path, other.path)
    return other


DIFFERENCES: dict[str, Callable[[StoredPlace], StoredPlace]] = {
    "the data file was written later": _touch,
    "the data file is longer": _longer,
    "it belongs to another column": _content_of_another,
    "it ends early": _bytes(lambda held: held[:-9]),
    "it ends early, at a word": _bytes(lambda held: held[:-64]),
    "it is empty": _bytes(lambda held: b""),
    "a bit is different": _bytes(lambda held: held[:1000] + bytes([held[1000] ^ 1]) + held[1001:]),
    "a page was never written": _bytes(lambda held: held[:1024] + bytes(512) + held[1536:]),
    "it is garbage": _bytes(lambda held: os.urandom(len(held))),
    "it has more": _bytes(lambda held: held + bytes(8)),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_file_that_differs_is_ignored_and_replaced(place: StoredPlace, difference: str) -> None:
    """A wrong stored value would be a wrong row of a derived table, and nothing else would show it."""
    read(place, Computed([pa.array(["wrong" * 300, *"wrong"])]))
    changed = DIFFERENCES[difference](place)
    again, then = Computed(), Computed()
    assert read(changed, again) == ALL
    assert again.times == 1
    assert read(changed, then) == ALL
    assert then.times == 0


def test_file_of_another_version_is_ignored(place: StoredPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may store something else under the same name."""
    read(place, Computed([pa.array(["wrong"])]))
    monkeypatch.setattr(stored_columns, "FORMAT", stored_columns.FORMAT + 1)
    assert read(place, Computed()) == ALL


def test_folder_that_cannot_be_written_costs_only_time(place: StoredPlace) -> None:
    """A full disk must not stop a merge that needs no more room in its tables."""
    (place.folder / FOLDER).write_text("a file where the folder should be")
    assert read(place, Computed()) == ALL


def test_process_that_dies_leaves_nothing_that_is_read(place: StoredPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is given last, after the content is durable."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            read(place, Computed([pa.array(["wrong"])]))
    left = place.folder / FOLDER / "killed.tmp"
    left.write_bytes(b"half a file")
    assert read(place, Computed()) == ALL
    drop_stored(place.folder, [place.data])
    assert left.exists()
    os.utime(left, (0, 0))
    drop_stored(place.folder, [place.data])
    assert [path.suffix for path in (place.folder / FOLDER).iterdir()] == [".arrow"]


def test_files_of_replaced_data_files_are_removed(place: StoredPlace) -> None:
    """A value that was deleted from a table must not stay readable next to it."""
    other = place.folder / "part-2.parquet"
    other.write_bytes(b"more rows")
    read(place, Computed())
    read(replace(place, data=other, content=(str(other), 9, "col-1")), Computed())
    (place.folder / FOLDER / "garbage.arrow").write_bytes(b"garbage")
    drop_stored(place.folder, [other])
    (kept,) = (place.folder / FOLDER).iterdir()
    assert json.loads(pa.ipc.open_stream(kept.read_bytes()).schema.metadata[b"cdcflow"])["data"] == str(other)
    drop_stored(place.folder, [])
    assert not list((place.folder / FOLDER).iterdir())
    drop_stored(place.folder / "elsewhere", [])
