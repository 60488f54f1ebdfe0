"""Which files become rows, when, and what happens to a file that does not fit."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from captured_files import CapturedFiles
from pyarrow import parquet
from pydantic import ValidationError

from cdcflow.errors import HistoryLost, SourceUnavailable
from cdcflow.ports import TableId
from cdcflow.testing.sources import LOG_ID
from cdcflow_files import FilesSettings, open_source


class Landing(CapturedFiles):
    """A folder that a source reads."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "landing"
        self.folder.mkdir()
        super().__init__(folder / "state", folder=self.folder, **settings)

    def write(self, name: str, text: str | bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f"{path.name}.tmp")
        unfinished.write_bytes(text.encode() if isinstance(text, str) else text)
        os.replace(unfinished, path)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path, keys={"files.orders": ["id"]})


def test_each_format_becomes_rows(landing: Landing) -> None:
    """The same rows, whatever wrote them."""
    landing.write("a.csv", "id,name\n1,one\n2,\n")
    landing.write("b.jsonl", '{"id": 1, "name": "one"}\n{"id": 2, "name": null}\n')
    landing.write("c.csv.gz", gzip.compress(b"id,name\n1,one\n2,\n"))
    rows = pa.table({"id": [1, 2], "name": ["one", None]})
    parquet.write_table(rows, landing.folder / "d.parquet")
    landing.poll()
    found = landing.changes()
    for table in "abcd":
        assert [row for op, row in found if op == f"c {table}"] == rows.to_pylist()


def test_changed_file_with_a_key_becomes_the_differences(landing: Landing) -> None:
    """Rows that vanished are deletes, and rows that are the same are nothing."""
    landing.write("orders.csv", "id,total\n1,10\n2,20\n3,30\n")
    landing.poll()
    landing.write("orders.csv", "id,total\n4,40\n1,10\n3,31\n")
    landing.poll()
    assert landing.changes()[3:] == [
        ("d orders", {"id": 2, "total": 20}),
        ("c orders", {"id": 4, "total": 40}),
        ("u orders", {"id": 3, "total": 31}),
    ]


def test_row_belongs_to_the_file_that_wrote_it_last(landing: Landing) -> None:
    """A later export has newer rows. That the older file loses or keeps such a row means nothing."""
    landing.write("orders/1.csv", "id,total\n1,10\n2,20\n")
    landing.poll()
    landing.write("orders/2.csv", "id,total\n2,21\n3,30\n")
    landing.poll()
    landing.write("orders/1.csv", "id,total\n1,10\n4,40\n")
    landing.poll()
    landing.write("orders/2.csv", "id,total\n3,30\n")
    landing.poll()
    assert [(op[0], row["id"]) for op, row in landing.changes()] == [
        *(("c", 1), ("c", 2)),
        *(("u", 2), ("c", 3)),
        ("c", 4),
        ("d", 2),
    ]


def test_file_without_a_key_may_grow_and_not_change(landing: Landing) -> None:
    """Which row was changed cannot be known, so the table stops until the old content is back; others continue."""
    landing.write("log.jsonl", '{"n": 1}\n')
    landing.poll()
    landing.write("log.jsonl", '{"n": 1}\n{"n": 2}\n')
    landing.poll()
    landing.write("log.jsonl", '{"n": 5}\n{"n": 2}\n')
    landing.write("orders.csv", "id\n1\n")
    landing.poll()
    assert [row.get("n", "other") for _, row in landing.changes()] == [1, 2, "other"]
    assert landing.stopped().startswith("files.log: log.jsonl: rows that were captured have changed")
    assert landing.source.coverage({TableId("files", "log"): 1}).keys() == {TableId("files", "log")}
    landing.write("log.jsonl", '{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    landing.poll()
    assert landing.stopped() == ""
    assert [row["n"] for op, row in landing.changes() if op == "c log"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("2.csv", "id,total\n5,s3cret\n", "a value of column total in row 2 does not fit the column's type"),
        ("2.csv", "id,total\n5\n", "its content is not csv, or a value does not fit the type of its column"),
        ("2.csv", "id,total\n5,1\n5,2\n", "two rows have the same key"),
        ("2.csv", "id,total\n,1\n", "column id of its key has NULL"),
        ("2.csv", "total\n1\n", "column id of its key is missing"),
        ("2.csv", "id,_op\n5,c\n", "column _op has a name that cdcflow uses itself"),
        ("2.jsonl", '{"id": 5, "total": "s3cret"}\n', "its content is not json, or a value does not fit the type of"),
        ("2.jsonl", '{"id": 5, "of": {"s3cret": 1}}\n', "column of has type struct<s3cret: int64>, which a table"),
        ("2.parquet", b"s3cret", "its content is not parquet, or a value does not fit the type of its column"),
    ],
)
def test_file_that_does_not_fit_stops_its_table_alone(
    landing: Landing, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, reason: str
) -> None:
    """One bad file never stops other tables, the reason has no value, and the table continues without the file."""
    landing.write("orders/1.csv", "id,total\n1,10\n")
    landing.poll()
    landing.write(f"orders/{name}", content)
    landing.poll()
    landing.write("orders/3.csv", "id,total\n9,90\n")
    landing.write("others.csv", "id\n1\n")
    landing.poll()
    assert landing.stopped().startswith(f"files.orders: orders/{name}: {reason}")
    (finding,) = [one for one in landing.source.doctor() if one.level == "error"]
    assert finding.remedy
    if "struct" not in reason:
        assert "s3cret" not in f"{landing.stopped()} {finding} {capsys.readouterr()}"
    assert [op for op, _ in landing.changes()] == ["c orders", "c others"]
    (landing.folder / "orders" / name).unlink()
    landing.poll()
    landing.poll()
    assert landing.stopped() == ""
    assert [op for op, _ in landing.changes()] == ["c orders", "c others", "c orders"]


def test_column_of_a_later_file_is_added(landing: Landing) -> None:
    """Rows of earlier files have NULL there."""
    landing.write("orders/1.csv", "id\n1\n")
    landing.poll()
    landing.write("orders/2.csv", "id,note\n2,new\n")
    landing.write("orders/1.csv", "id\n1\n3\n")
    landing.poll()
    assert landing.changes()[-1] == ("c orders", {"id": 3, "note": None})
    (table,) = landing.source.tables()
    assert [(c.name, c.number, str(c.type.arrow)) for c in table.columns] == [("id", 1, "int64"), ("note", 2, "string")]


def test_given_types_are_not_inferred(tmp_path: Path) -> None:
    """A code with leading zeros is a text, and money is exact."""
    landing = Landing(tmp_path, types={"files.a.code": "text", "files.a.sum": "decimal(12,2)"})
    landing.write("a.csv", "code,sum\n007,1.10\n")
    landing.poll()
    ((_, row),) = landing.changes()
    assert (row["code"], str(row["sum"])) == ("007", "1.10")


def test_unfinished_file_is_not_read(landing: Landing) -> None:
    """Its size and time of change must be equal in two polls; a name of an unfinished file is never read."""
    path = landing.folder / "a.csv"
    for name in ("b.csv.tmp", ".c.csv", "_d.csv", "e.csv.part", "f.txt"):
        (landing.folder / name).write_text("id\n1\n")
    for text in ("id\n1\n", "id\n1\n2", "id\n1\n23\n"):
        path.write_text(text)
        landing.source.poll_now()
    assert landing.source.tables() == []
    landing.source.poll_now()
    assert [row for _, row in landing.changes()] == [{"id": 1}, {"id": 23}]


def test_removed_file_leaves_its_rows(landing: Landing) -> None:
    """Files are often moved away once they are old; that is not a delete."""
    landing.write("orders.csv", "id\n1\n")
    landing.poll()
    (landing.folder / "orders.csv").unlink()
    landing.poll()
    assert [op for op, _ in landing.changes()] == ["c orders"]


def test_restart_with_another_ledger_is_lost_history(landing: Landing, tmp_path: Path) -> None:
    """A ledger that was deleted has forgotten what was captured: every table must be read again."""
    landing.write("orders.csv", "id\n1\n")
    landing.poll()
    other = open_source(landing.settings.model_copy(update={"state": tmp_path / "other"}))
    with pytest.raises(HistoryLost, match="is not the one that this log was captured from"):
        other.prepare(landing.checkpoint, LOG_ID)
    other.close()


def test_folder_that_is_gone_is_unavailable(landing: Landing) -> None:
    """A mount that is missing for a while removes no row and ends no capture."""
    landing.folder.rmdir()
    with pytest.raises(SourceUnavailable, match=r"check source\.folder"):
        landing.source.poll_now()
    assert [one.subject for one in landing.source.doctor() if one.level == "error"] == ["source.folder"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"store": {"url": "s3://b/x"}}, "needs one place for the files: folder, store, or urls and lists"),
        ({"headers": {"X-Token": "${env:T}"}}, "has headers, which only urls and lists use"),
        ({"urls": {"files.a": ["ftp://h/a.csv"]}}, "has what is not a URL such as https://host/path"),
        ({"urls": {"files.a": ["https://h/a.csv?token=x"]}}, "or one with a secret in it"),
        ({"urls": {"files.a": ["https://me:pw@h/a.csv"]}}, "or one with a secret in it"),
        ({"urls": {"files.a": ["https://h/a"]}}, "whose path does not end as a file's"),
        ({"urls": {"a": ["https://h/a.csv"]}}, "write files.name: [https://host/name.csv]"),
        ({"lists": {"files.a": "file:///etc/passwd"}}, "has what is not a URL"),
        ({"keys": {"orders": ["id"]}}, "write files.name: [column]"),
        ({"keys": {"files.orders": []}}, "has a key of files.orders without a column"),
        ({"types": {"files.a": "text"}}, "write files.table.column: type"),
        ({"types": {"files.a.b": "varchar"}}, "is not one of bool, int32"),
        ({"types": {"files.a.b": "decimal(5,6)"}}, "is not one of bool, int32"),
    ],
)
def test_setting_that_means_nothing_is_refused(settings: Mapping[str, object], expected: str) -> None:
    """A key for a table that cannot exist would be found only when the table stops."""
    given: dict[str, Any] = {"kind": "files", "folder": "a", "state": "b", **settings}
    with pytest.raises(ValidationError) as caught:
        FilesSettings(**given)
    assert expected in str(caught.value)


def test_hostile_names_are_data(landing: Landing) -> None:
    """A file's name is never part of a statement."""
    names: Sequence[str] = ["x'; DROP TABLE items; --.csv", 'a"b.csv', "ünï.csv"]
    for name in names:
        landing.write(name, "id\n1\n")
    landing.poll()
    assert len(landing.changes()) == len(names)
    assert json.dumps([t.to_json() for t in landing.source.tables()])


def test_key_that_was_changed_in_the_settings_stops_the_table(landing: Landing) -> None:
    """Rows would be other rows."""
    landing.write("orders.csv", "id,n\n1,1\n")
    landing.poll()
    other = open_source(landing.settings.model_copy(update={"keys": {"files.orders": ("n",)}}))
    landing.write("orders.csv", "id,n\n1,2\n")
    other.poll_now()
    other.poll_now()
    details = other.status(None).details
    assert "its key was id and is n now" in details["stopped"]
    assert details["stopped_tables"] == "1"
    other.close()
