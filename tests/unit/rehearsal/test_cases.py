"""Files of tests: what they may contain, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.rehearsal.cases import Alteration, RowWrite
from cdcflow.rehearsal.files import read_file

TABLES = """\
tables:
  public.orders:
    columns: {id: integer, amount: "numeric(12,2)", note: text}
    key: [id]
  public.lines:
    columns: {n: integer}
"""


def in_file(folder: Path, text: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(text)
    return path


def test_unknown_table_is_reported_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    """A test of a table that does not exist would pass."""
    path = in_file(tmp_path, f"{TABLES}tests:\n  a claim:\n    before:\n      public.order: []\n")
    with pytest.raises(ConfigurationError) as error:
        read_file(path)
    assert str(error.value).startswith(f"{path}:10:7: unknown table public.order; did you mean public.orders?")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("{chnges: []}", "unknown name chnges; did you mean changes?"),
        ("{changes: []}", "this test expects nothing"),
        ("{changes: [{updat: {}}]}", "unknown name updat; did you mean update?"),
        ("{changes: [{update: {public.lines: [{n: 1}]}}]}", "the table has no key"),
        ("{changes: [{update: {public.orders: [{note: x}]}}]}", "it lacks id of the key"),
        ("{changes: [[{alter: {public.orders: {drop: [note]}}}]]}", "alter is a statement alone"),
        ("{tables: {public.orders: [{id: 1}, {id: 2, note: x}]}}", "note is not in each"),
        ("{tables: {public.orders: {row: []}}}", "unknown name row; did you mean rows?"),
        ("{before: [x], tables: {}}", "before must be a mapping"),
    ],
)
def test_mistake_in_a_test_is_one_line(case: str, words: str, tmp_path: Path) -> None:
    """What is ignored in a test makes it pass."""
    path = in_file(tmp_path, f"{TABLES}tests:\n  a claim: {case}\n")
    with pytest.raises(ConfigurationError) as error:
        read_file(path)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{path}:8:"), str(error.value)


def test_key_names_a_column_of_the_table(tmp_path: Path) -> None:
    path = in_file(
        tmp_path, "tables: {public.t: {columns: {id: integer}, key: [idd]}}\ntests: {a: {tables: {public.t: []}}}\n"
    )
    with pytest.raises(ConfigurationError, match="did you mean id"):
        read_file(path)


def test_values_are_the_texts_that_are_written(tmp_path: Path) -> None:
    """YAML reads 1.10 as 1.1, 2026-01-31 as a date, no as false and 010 as 8."""
    rows = "[{id: 010, amount: 1.10, note: no}, {id: 2, amount: null, note: 2026-01-31}, {id: 3, note: ''}]"
    path = in_file(
        tmp_path, f"{TABLES}tests: {{a: {{before: {{public.orders: {rows}}}, tables: {{public.orders: []}}}}}}\n"
    )
    found = [write.values for write in read_file(path).cases[0].before]
    assert found == [
        {"id": "010", "amount": "1.10", "note": "no"},
        {"id": "2", "amount": None, "note": "2026-01-31"},
        {"id": "3", "note": ""},
    ]


def test_transactions_and_statements_are_in_their_order(tmp_path: Path) -> None:
    """A list is one transaction; everything else is committed alone."""
    changes = """
      - [{insert: {public.orders: [{id: 1}, {id: 2}]}}, {delete: {public.orders: [{id: 1}]}}]
      - update: {public.orders: [{where: {note: x}, set: {id: 7}, unchanged: [amount]}]}
      - alter: {public.orders: {add: {city: text}, drop: [note]}}
      - truncate: [public.lines]
"""
    path = in_file(tmp_path, f"{TABLES}tests:\n  a:\n    changes:{changes}    tables: {{public.orders: []}}\n")
    first, second, add, drop, last = read_file(path).cases[0].stages[0].changes
    assert isinstance(first, tuple)
    assert [(w.kind, dict(w.values), dict(w.where)) for w in first] == [
        ("insert", {"id": "1"}, {}),
        ("insert", {"id": "2"}, {}),
        ("delete", {}, {"id": "1"}),
    ]
    assert isinstance(second, tuple)
    assert isinstance(second[0], RowWrite)
    assert (second[0].values, second[0].where, second[0].unchanged) == ({"id": "7"}, {"note": "x"}, ("amount",))
    assert isinstance(add, Alteration)
    assert isinstance(drop, Alteration)
    assert [(a.kind, a.column, a.value) for a in (add, drop)] == [("add", "city", "text"), ("drop", "note", "")]
    assert isinstance(last, tuple)
    assert last[0].kind == "truncate"
