"""Rows whose changes came without a value or without its person end with values that the row's own person encrypted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import Advanced, Committed, RowsIncomplete
from cdcflow.config.columns import TableRules
from cdcflow.errors import ConfigurationError
from cdcflow.log.fold.fold import Key, LogChange, fold
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction
from cdcflow.model.position import Position
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy import shapes
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.secret_keys import PolicyKey, decrypt_with
from cdcflow.sources.privacy.shapes import PrivateTable
from cdcflow.sources.privacy.stream import PrivateSpool, PrivateStream, SpoolNotes
from cdcflow.testing.folded import changes_of

SECRET = "5e8ff9bf55ba3508199d22e984129be6"  # noqa: S105  of these tests
TABLE = TableId("public", "orders")
TEXT, INTEGER = ColumnType("text", pa.string()), ColumnType("integer", pa.int32())
COLUMNS = (
    Column("id", 1, INTEGER, nullable=False),
    Column("owner", 2, INTEGER),
    Column("address", 3, TEXT, nullable=False),
    Column("note", 4, TEXT),
)
ORDERS = Table(TABLE, 1, COLUMNS, ("id",))
BY_OWNER = {"encrypt": {"key": "${env:POLICY_KEY}", "id": "k1", "key_by": "OWNER"}}
SEEDS = 15


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFile:
    monkeypatch.setenv("POLICY_KEY", SECRET)
    made = KeyFile(tmp_path / "person-keys")
    made.create()
    return made


def rules(keys: KeyFile, columns: Mapping[str, object] | None = None) -> PolicyRules:
    given = {"columns": {"address": BY_OWNER} if columns is None else columns}
    return PolicyRules({"public.orders": TableRules.model_validate(given)}, keys)


def shape(keys: KeyFile, table: Table = ORDERS, columns: Mapping[str, object] | None = None) -> PrivateTable:
    found = rules(keys, columns).shape(table)
    assert found is not None
    assert found.private is not None
    return found.private


def batch(table: Table, rows: list[dict[str, Any]]) -> ChangeBatch:
    return ChangeBatch(table, np.arange(len(rows)), pa.RecordBatch.from_pylist(rows, schema=table.change_schema))


def plain(keys: KeyFile, value: Any) -> tuple[str, str] | None:
    """The person of a value, and what it is."""
    if value is None:
        return None
    key = PolicyKey("k1", SECRET.encode())
    person = key.person_in(value)
    if person is None:
        return "", key.decrypt(value).decode()
    wrapped = keys.find(person)
    assert wrapped is not None
    return person, decrypt_with(key.person_keys().unwrap(person, wrapped), value).decode()


def person_of(value: object) -> str:
    if value is None:
        return ""
    return PolicyKey("k1", SECRET.encode()).person_keys().persons(pa.array([str(value).encode()]))[0]


# ── random histories ────────────────────────────────────────────────────────────────────────────────────────


def changed(dice: random.Random, table: Table, source: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
    """Change one row of the source, and return what its log has of it."""
    row = {
        "id": dice.randint(1, 6),
        "owner": dice.choice([7, 8, 9] if "owner" in table.key else [7, 8, None]),
        "address": dice.choice(["", "a", "b"]),
        "note": dice.choice([None, "n"]),
    }
    key = tuple(row[name] for name in table.key)
    if key not in source:
        source[key] = row
        return [{**row, "_op": "c"}]
    before = source.pop(key)
    if dice.random() < 0.2:
        return [{name: before[name] for name in table.key} | {"_op": "d"}]
    after = {**before, **{name: row[name] for name in ("owner", "address", "note") if dice.random() < 0.4}}
    if dice.random() < 0.2:
        after["id"] += 10
    new_key = tuple(after[name] for name in table.key)
    if new_key in source:
        source[key] = before
        return []
    source[new_key] = after
    omitted = [
        n for n in ("owner", "address", "note") if n not in table.key and after[n] == before[n] and dice.random() < 0.6
    ]
    left = {**after, **dict.fromkeys(omitted), "_unchanged": omitted or None}
    if new_key == key:
        return [{**left, "_op": "u"}]
    old = {name: before[name] for name in table.key}
    return [{**old, "_op": "d"}, {**left, "_op": "c", "_before": old}]


def wrong_rows(seed: int, keys: KeyFile, key: tuple[str, ...]) -> list[Key]:
    """The rows of a random history that have another value than the source, or one of another person; or had a value
    of another person at any time."""
    dice = random.Random(seed)
    table = Table(TABLE, 1, COLUMNS, key)
    private, source = shape(keys, table), dict[Key, dict[str, Any]]()
    changes: list[LogChange] = []
    of_others: list[Key] = []
    for _ in range(40):
        given = changed(dice, table, source)
        if not given:
            continue
        raw = batch(table, given)
        add(changes, private, private.changes(raw))
        for change in changes[-len(given) :]:
            row_key = tuple(change.values.get(name) for name in key)
            value = plain(keys, change.values.get("address"))
            if value is not None and change.op != "d" and value[0] != person_of(source[row_key]["owner"]):
                of_others.append(row_key)
        wanted = private.rows_to_reread(raw)
        if wanted is not None:
            again = raw.rows.select(list(key)).filter(wanted).to_pylist()
            found = [source[tuple(row.values())] for row in again]
            add(changes, private, private.changes(batch(table, [{**row, "_op": "r"} for row in found])))
    folded = fold({}, changes, table.key_columns, keyed=True)
    expected = {k: (person_of(row["owner"]), row["address"]) for k, row in source.items()}
    got = {k: plain(keys, row.values.get("address")) for k, row in folded.items()}
    return of_others + [k for k in {**expected, **got} if expected.get(k) != got.get(k)]


def add(changes: list[LogChange], private: PrivateTable, left: ChangeBatch) -> None:
    offsets = pa.array(np.arange(left.rows.num_rows) + len(changes))
    logged = pa.Table.from_batches([left.rows]).append_column("_offset", offsets)
    changes.extend(changes_of(private.table, logged))


@pytest.mark.parametrize("key", [("id",), ("id", "owner")], ids=str)
def test_values_are_those_of_the_persons_of_their_rows(keys: KeyFile, key: tuple[str, ...]) -> None:
    """Whatever the changes omit, and whether the person is part of the key: `wrong_rows(seed, …)` repeats one."""
    assert [seed for seed in range(SEEDS) if wrong_rows(seed, keys, key)] == []


@pytest.mark.parametrize("planted", ["rows_to_reread", "without_unknown_persons"])
def test_planted_faults_are_found(keys: KeyFile, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """The comparison can fail."""
    faults: dict[str, Callable[..., object]] = {
        "rows_to_reread": lambda table, rows, persons: None,
        "without_unknown_persons": lambda table, rows, persons: rows,
    }
    monkeypatch.setattr(shapes, planted, faults[planted])
    assert [seed for seed in range(SEEDS) if wrong_rows(seed, keys, ("id",))]


# ── the stream ──────────────────────────────────────────────────────────────────────────────────────────────


class _Stream:
    """A stream with given events."""

    def __init__(self, *events: object) -> None:
        self.events = list(events)

    def poll(self) -> list[object]:
        return self.events


class _Rows:
    """A spool that keeps what is written."""

    name = "s1"

    def __init__(self) -> None:
        self.batches: list[ChangeBatch] = []

    def write(self, batches: list[ChangeBatch], subxids: object) -> None:
        self.batches += batches


MOVED = [
    {"id": 1, "owner": 7, "address": "a", "note": "n", "_op": "c"},
    {"id": 2, "owner": 8, "_op": "u", "_unchanged": ["address"]},
    {"id": 3, "owner": 8, "address": "a", "_op": "u", "_unchanged": ["note"]},
    {"id": 4, "address": "x", "_op": "u", "_unchanged": ["owner"]},
    {"id": 5, "_op": "d", "_unchanged": ["owner", "address", "note"]},
]


def test_rows_of_perhaps_another_person_are_to_be_read_before_their_transaction_counts(keys: KeyFile) -> None:
    run = Run(np.array([5], np.uint64), pa.array(["p2"]), np.array([1]), np.array([5]), (batch(ORDERS, MOVED),))
    stream = PrivateStream(_Stream(Advanced(Position("p1")), Committed(run)), rules(keys), Position("p0"), SpoolNotes())  # type: ignore[arg-type]
    first, again, left = stream.poll()
    assert isinstance(again, RowsIncomplete)
    assert (first, again.table, again.position) == (Advanced(Position("p1")), TABLE, Position("p1"))
    assert again.keys.keys.to_pylist() == [{"id": 2}, {"id": 4}]
    assert isinstance(left, Committed)
    assert isinstance(left.run, Run)
    [rows] = left.run.batches
    assert rows.rows.column("_unchanged").to_pylist()[1:4] == [["address"], ["note"], ["owner", "address"]]
    assert rows.rows.column("address").null_count == 3


def test_rows_in_a_spool_are_read_again_only_of_tables_that_need_it(keys: KeyFile) -> None:
    notes = SpoolNotes()
    mine, spool = rules(keys), _Rows()
    other = Table(TableId("public", "bare"), 1, COLUMNS, ("id",))
    PrivateSpool(spool, mine, notes).write([batch(ORDERS, MOVED[:1]), batch(other, MOVED)], None)  # type: ignore[arg-type]
    assert notes.incomplete == {}
    PrivateSpool(spool, mine, notes).write([batch(ORDERS, MOVED)], None)  # type: ignore[arg-type]
    all_keys = {t.id: batch(t, MOVED[1:3]).rows.select(["id"]) for t in (ORDERS, other)}
    sent = SpooledTransaction(
        5, Position("p2"), 1, 11, "s1", partial={t: KeySet(pa.table(rows)) for t, rows in all_keys.items()}
    )
    found = PrivateStream(_Stream(Committed(sent)), mine, Position("p0"), notes).poll()  # type: ignore[arg-type]
    assert [e.table for e in found if isinstance(e, RowsIncomplete)] == [TABLE]
    assert notes.incomplete == {}


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "columns", "reason", "remedy"),
    [
        (Table(TABLE, 1, COLUMNS, (), Identity.FULL), {"address": BY_OWNER}, "the table has no key", "primary key"),
        (ORDERS, {"id": BY_OWNER}, "column id is part of the key, and has key_by", "use hash"),
        (
            ORDERS,
            {"note": {"encrypt": {"key": "${env:POLICY_KEY}", "key_by": "ownr"}}},
            "key_by: ownr, and there is no such column",
            "did you mean owner",
        ),
        (
            Table(TABLE, 1, (*COLUMNS, Column("phone", 5, TEXT, missing="0")), ("id",)),
            {"phone": BY_OWNER},
            "column phone was added with a default",
            "use drop, null or mask",
        ),
        (
            Table(TABLE, 1, (*COLUMNS, Column("OWNER", 5, ColumnType("text[]", pa.list_(pa.string())))), ("id",)),
            {"address": BY_OWNER},
            "has no text, which key_by needs",
            "name another column",
        ),
    ],
)
def test_table_that_key_by_does_not_fit_is_refused_with_a_remedy(
    keys: KeyFile, table: Table, columns: dict[str, object], reason: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        shape(keys, table, columns)
    assert remedy in str(refused.value.remedy)
    assert refused.value.runbook == "column-policies"


def test_person_column_that_is_renamed_is_listed_under_both_names(keys: KeyFile) -> None:
    """The log may have rows from before the rename."""
    both = {"encrypt": {"key": "${env:POLICY_KEY}", "id": "k1", "key_by": ["owner", "holder"]}}
    renamed = Table(TABLE, 1, tuple(replace(c, name="holder") if c.name == "owner" else c for c in COLUMNS), ("id",))
    for table in (ORDERS, renamed):
        assert shape(keys, table, {"address": both}).persons == {"address": table.columns[1].name}


def test_column_may_be_null_for_an_erased_person_and_old_rows_have_their_own_persons_key(keys: KeyFile) -> None:
    table = Table(TABLE, 1, COLUMNS, ("id",), Identity.FULL)
    private = shape(keys, table)
    assert private.table.columns[2].nullable
    old = {"id": 1, "owner": 7, "address": "a", "note": None}
    left = private.changes(batch(table, [{**old, "owner": 8, "_op": "u", "_before": old}])).rows
    assert plain(keys, left.column("address")[0].as_py()) == (person_of(8), "a")
    assert plain(keys, left.column("_before")[0].as_py()["address"]) == (person_of(7), "a")
