"""Settings of row rules: what is refused and how, what a checkpoint stores of them, and what leaves."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import Committed, RowsIncomplete
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.config import load
from cdcflow.config.columns import TableRules
from cdcflow.config.expressions import parse
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import ChangeBatch, KeySet, SpooledTransaction
from cdcflow.model.position import Position
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.publish import mysql_columns, postgres_columns
from cdcflow.publish.columns import Modes
from cdcflow.sinks.memory import MemorySpool
from cdcflow.sources.privacy.leaving import LeavingTable
from cdcflow.sources.privacy.rules import PolicyRules, changed_policies, with_stored
from cdcflow.sources.privacy.stored_rules import raw_of, read_stored
from cdcflow.sources.privacy.stream import PrivateSpool, PrivateStream, SpoolNotes
from cdcflow.sources.rows.compilation import Unusable, compile_expression
from cdcflow.sources.rows.kernels import InputRows, as_array

ID = TableId("public", "orders")
ORDERS = Table(
    ID,
    1,
    (
        Column("id", 1, ColumnType("integer", pa.int32())),
        Column("total", 2, ColumnType("numeric(10,2)", pa.decimal128(10, 2))),
        Column("Status", 3, ColumnType("text", pa.string())),
        Column("email", 4, ColumnType("text", pa.string())),
    ),
    ("id",),
)


def rules(**given: Any) -> PolicyRules:
    return PolicyRules({"public.orders": TableRules.model_validate(given)})


def leaving(table: Table = ORDERS, **given: Any) -> LeavingTable:
    found = rules(**given).shape(table)
    assert found is not None
    return found


def left(these: LeavingTable, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=these.raw.change_schema)
    found = these.changes(ChangeBatch(these.raw, np.arange(len(rows)), batch)).rows.to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]


# ── expressions ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lowr(status) = 'a'", "has the unknown function lowr: did you mean lower?"),
        ("pg_read_file('/etc/passwd') = 'x'", "has the unknown function pg_read_file"),
        ("id = 1; DROP TABLE orders", '";" at character 7 is not understood'),
        ("id = 1 -- x", '"-" at character 8'),
        ("id = (SELECT 1)", '"1" at character 14 is not )'),
        ("CAST(id AS intger) = 1", "has the unknown type intger: did you mean integer?"),
        ("substr(status) = 'a'", "has substr with 1 arguments: it takes 2 to 3"),
        ("status ->> '$..x' = 'a'", "has a path that is not like $.address.city"),
        ("id =", "its end is not a value"),
        ("(" * 200 + "1" + ")" * 200, "is nested more than 100 times"),
        ("NOT " * 200 + "TRUE", "is nested more than 100 times"),
        ("- " * 2000 + "1", "is nested more than 100 times"),
        ("id = 1 " * 2000, "has more than 10000 characters"),
        ("CAST(id AS decimal) = 1", "write decimal(12,2)"),
        ("status = 'it''s", "is not understood"),
    ],
)
def test_text_that_is_no_expression_is_refused_with_its_place(text: str, message: str) -> None:
    """Hostile texts, too: they are data, and nothing executes them."""
    with pytest.raises(ValueError, match=r".*") as refused:
        parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sttus = 'a'", "uses the unknown column sttus; did you mean Status?"),
        ("\"status\" = 'a'", "did you mean Status?"),
        ("id / 2 > 1", "write CAST(… AS double)"),
        ("status > 5", "uses > with string and int64: CAST one of them"),
        ("status + 1 = 2", "which is not a number"),
        ("id = email", "CAST one of them"),
        ("year(id) = 1", "neither a date nor a timestamp"),
        ("substr(email, 0, 2) = 'a'", "a place before the first character"),
        ("total = 'x'", "which is not a value of type"),
        ("email LIKE status", "something else than a constant"),
        ("id AND TRUE", "takes bool"),
    ],
)
def test_expression_that_does_not_fit_the_columns_is_refused(text: str, message: str) -> None:
    with pytest.raises((Unusable, ConfigurationError)) as refused:
        leaving(where=text)
    assert message in str(refused.value)


TYPES = {
    "paid": "numeric",
    "open": "time without time zone",
    "doc": "jsonb",
    "mail": "citext",
    "code": "character(5)",
    "flag": "character(1)",
    "mood": "public.mood",
    "tags": "integer[]",
    "person": "uuid",
    "note": "character varying(20)",
    "label": "enum('a','b')",
}
"""Types of columns that are text in the log."""
TEXTS = Table(
    ID,
    1,
    (
        Column("id", 1, ColumnType("integer", pa.int32())),
        *(Column(name, i, ColumnType(text, pa.string())) for i, (name, text) in enumerate(TYPES.items(), 2)),
    ),
    ("id",),
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paid < note", "compares column paid (numeric), which is text in the log: CAST it"),
        ("paid > '100'", "such as decimal(20,4), or to text"),
        ("paid BETWEEN '1' AND '2'", "column paid (numeric)"),
        ("paid IN ('1.0')", "column paid (numeric)"),
        ("coalesce(note, paid) = '1'", "column paid (numeric)"),
        ("CASE WHEN id > 1 THEN paid END <> '1'", "column paid (numeric)"),
        ("nullif(paid, '0') IS NULL", "column paid (numeric)"),
        ("paid IS DISTINCT FROM '1'", "column paid (numeric)"),
        ("open > '9:00'", "column open (time without time zone)"),
        ("doc = '{}'", "column doc (jsonb)"),
        ("tags = '{1}'", "column tags (integer[])"),
        ("mail = 'A@x'", "column mail (citext)"),
        ("mail LIKE 'a%'", "column mail (citext)"),
        ("code = 'ab'", "with its blanks, which the source ignores: write trim(code)"),
        ("mood < 'sad'", "compares column mood (public.mood) by the order of its text"),
        ("label >= 'b'", "write IN (…), or CAST(label AS text)"),
        ("person = 'x'", "which is not a value of type uuid"),
    ],
)
def test_text_that_the_source_compares_otherwise_is_refused(text: str, message: str) -> None:
    """Compared as text, 9 is more than 100: the copy would lack rows, and nothing would show it."""
    with pytest.raises(ConfigurationError) as refused:
        leaving(TEXTS, where=text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("CAST(paid AS decimal(20,4)) > 99.5", {"paid": "100"}),
        ("CAST(paid AS text) < '9'", {"paid": "100"}),
        ("paid IS NOT NULL", {"paid": "100"}),
        ("doc->>'$.a' = '1'", {"doc": '{"a": 1}'}),
        ("lower(mail) = 'a@x'", {"mail": "A@x"}),
        ("mail ILIKE 'a%'", {"mail": "A@x"}),
        ("trim(code) = 'ab'", {"code": "ab   "}),
        ("flag = 'a'", {"flag": "a"}),
        ("mood IN ('sad', 'ok')", {"mood": "ok"}),
        ("label <> 'a'", {"label": "b"}),
        ("person = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", {"person": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
        ("person IN ('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}')", {"person": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
        ("note BETWEEN 'a' AND 'c'", {"note": "b"}),
    ],
)
def test_text_can_be_compared_as_the_expression_says(text: str, row: dict[str, str]) -> None:
    found = left(leaving(TEXTS, where=text), {"id": 1, "_op": "c", **row})
    assert [one["id"] for one in found] == [1]


def value(text: str, **columns: Any) -> Any:
    arrays = {name: pa.array([one]) for name, one in columns.items()}
    made = compile_expression(parse(text), pa.schema([(name, array.type) for name, array in arrays.items()]))
    return as_array(made.evaluate(InputRows(arrays, 1)), 1)[0].as_py()


def test_json_paths_have_numbers_with_their_digits() -> None:
    document = '{"a b": [{"n": 1.50, "t": "x\\"y"}, null, true], "big": 12345678901234567890.10}'
    assert value("""j->>'$."a b"[0].n'""", j=document) == "1.50"
    assert value("""j->>'$."a b"[0].t'""", j=document) == 'x"y'
    assert value("""j->>'a b'""", j=document) == '[{"n": 1.50, "t": "x\\"y"}, null, true]'
    assert value("""j->>'$."a b"[1]'""", j=document) is None
    assert value("j->>'$.none.x[3]'", j=document) is None
    assert str(value("(j->>'$.big')::decimal(38,2)", j=document)) == "12345678901234567890.10"


@pytest.mark.parametrize(
    "text", ["CAST(s AS integer)", "n + n", "10 % (n - n)", "CAST(1 AS double) / (n - n)", "s->>'$.a'"]
)
def test_value_that_an_expression_does_not_fit_is_an_error_and_not_null(text: str) -> None:
    with pytest.raises(pa.ArrowException):
        value(text, s="c4n4ry", n=2**63 - 1)
    assert value(f"CASE WHEN s <> 'c4n4ry' THEN {text} END", s="c4n4ry", n=2**63 - 1) is None
    assert value(f"s <> 'c4n4ry' AND ({text}) IS NULL", s="c4n4ry", n=2**63 - 1) is False


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────


def test_mistake_in_a_file_is_shown_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "cdcflow.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://h/d'}\nlog: {path: log}\ntables:\n  public.orders:\n"
        "    where: id = 1\n    computed:\n      day: date_trnc('day', at)\n    wher: x\n"
    )
    with pytest.raises(ConfigurationError) as refused:
        load(file)
    assert "cdcflow.yaml:7" in str(refused.value)
    assert "has the unknown function date_trnc: did you mean date_trunc?" in str(refused.value)
    assert "did you mean tables.public.orders.where?" in str(refused.value) or "wher" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"computed": {"STATUS": "id"}}, "the computed column STATUS is also a column of it"),
        ({"columns": {"total": {"rename": "Email"}}}, "two columns would be called"),
        ({"columns": {"total": {"rename": "_op"}}}, "two columns would be called _op"),
        ({"computed": {"_offset": "id"}}, "two columns would be called _offset"),
        (
            {"computed": {"Day": "id"}, "columns": {"day": {"rename": "d"}}},
            "computed column Day has a new name in columns",
        ),
        ({"columns": {"totl": {"rename": "amount"}}}, "no column totl, which has a new name in tables"),
        ({"computed": {"x": "NULL"}}, "always NULL"),
        ({"where": "id"}, "not true or false"),
        ({"columns": {"email": "mask"}, "computed": {"domain": "right(email, 3)"}}, "would show its values"),
    ],
)
def test_rule_that_does_not_fit_its_table_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        leaving(**given)
    assert refused.value.remedy
    assert refused.value.runbook in ("row-rules", "column-policies")


RENAMED = replace(ORDERS, columns=tuple(replace(c, name="state") if c.name == "Status" else c for c in ORDERS.columns))


def test_expression_follows_a_column_that_is_renamed_by_the_printed_remedy() -> None:
    """Rows from before the rename come under its earlier name, and those after it under the new one."""
    for text in ("status = 'paid'", "state = 'paid'"):
        with pytest.raises(ConfigurationError, match="uses the unknown column stat") as refused:
            [rules(where=text).shape(table) for table in (ORDERS, RENAMED)]
        assert "write coalesce(NEW, OLD) with both names, and both under `optional`" in str(refused.value.remedy)
    mine = rules(where="coalesce(state, status) = 'paid'", optional=["state", "status"])
    for table, name in ((ORDERS, "Status"), (RENAMED, "state")):
        found = mine.shape(table)
        assert found is not None
        assert left(found, {"id": 1, name: "paid", "_op": "c"}) == [{"id": 1, name: "paid", "_op": "c"}]
        assert left(found, {"id": 1, name: "draft", "_op": "c"}) == []


def test_expression_uses_the_column_that_has_the_name_now() -> None:
    """Two columns exchange their names (docs/rows.md)."""
    names = {"Status": "email", "email": "Status"}
    swapped = replace(ORDERS, columns=tuple(replace(c, name=names.get(c.name, c.name)) for c in ORDERS.columns))
    row = {"_op": "c", "id": 1, "Status": "paid", "email": "none"}
    assert left(leaving(ORDERS, where="status = 'paid'"), row)
    assert left(leaving(swapped, where="status = 'paid'"), row)


def test_column_that_does_not_exist_is_ignored_by_coalesce_only_if_it_is_optional_and_another_exists() -> None:
    for text, optional in (
        ("coalesce(state, status) = 'a'", []),
        ("coalesce(state, 'x') = 'a'", ["state"]),
        ("state = 'a'", ["state"]),
    ):
        with pytest.raises(ConfigurationError, match="uses the unknown column state"):
            rules(where=text, optional=optional).shape(ORDERS)


@pytest.mark.parametrize("pattern", ["public.orders", "public.*"])
def test_column_with_a_new_name_that_the_source_renames_stops_until_both_are_named(pattern: str) -> None:
    first = PolicyRules({pattern: TableRules.model_validate({"columns": {"status": {"rename": "s"}}})})
    first.shape(ORDERS)
    with pytest.raises(ConfigurationError, match="no column status, which has a new name"):
        first.shape(RENAMED)
    both = {"columns": {"status": {"rename": "s"}, "state": {"rename": "s"}}, "optional": ["status", "state"]}
    mine = PolicyRules({pattern: TableRules.model_validate(both)})
    assert [mine.table_leaving(table).columns[2].name for table in (ORDERS, RENAMED)] == ["s", "s"]


def test_table_without_a_key_is_refused() -> None:
    for given in ({"where": "id = 1"}, {"computed": {"x": "id + 1"}}):
        with pytest.raises(ConfigurationError, match="it has no key"):
            leaving(replace(ORDERS, key=(), identity=Identity.FULL), **given)
    keyless = leaving(replace(ORDERS, key=(), identity=Identity.FULL), columns={"total": {"rename": "amount"}})
    assert left(keyless, {"id": 1, "_op": "d"}) == [{"id": 1, "_op": "d"}]


def test_computed_column_of_one_with_a_policy_needs_a_policy() -> None:
    """It would show the values that the policy hides."""
    both = leaving(columns={"email": "mask", "domain": {"truncate": 2}}, computed={"domain": "email"})
    [row] = (
        left(both, {"id": 1, "email": "c4n4ry", "_op": "c"}) if both.policies.keys() == {"email", "domain"} else [{}]
    )
    assert row == {"id": 1, "email": "****", "domain": "c4", "_op": "c"}


def test_names_and_texts_with_special_characters_are_data() -> None:
    hostile = "e\"'; DROP TABLE x; --\\ ${env:HOME} *"
    table = replace(ORDERS, columns=(*ORDERS.columns, Column(hostile, 9, ColumnType("text", pa.string()))))
    quoted = '"' + hostile.replace('"', '""') + '"'
    mine = leaving(
        table, where=f"{quoted} = 'it''s; --'", columns={hostile: {"rename": 'x "y"'}}, computed={"a'b": quoted}
    )
    rows = [{"id": 1, hostile: "it's; --", "_op": "c"}, {"id": 2, hostile: "other", "_op": "c"}]
    assert left(mine, *rows) == [{"id": 1, 'x "y"': "it's; --", "a'b": "it's; --", "_op": "c"}]


def test_rules_of_the_exact_name_count_before_those_of_patterns() -> None:
    given = {
        "*.*": {"where": "id = 1", "computed": {"x": "id", "y": "id"}},
        "public.orders": {"where": "id = 2", "computed": {"x": "total"}},
    }
    both = PolicyRules({name: TableRules.model_validate(one) for name, one in given.items()}).shape(ORDERS)
    assert both is not None
    assert left(both, {"id": 1, "_op": "c"}, {"id": 2, "_op": "c"}) == [{"id": 2, "y": 2, "_op": "c"}]


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_value_of_a_row_that_does_not_fit_leaves() -> None:
    """Only keys may: not in deletes, nor where a column is not sent."""
    mine = leaving(where="status = 'paid'")
    rows: list[dict[str, Any]] = [
        {"id": 1, "Status": "draft", "email": "c4n4ry", "_op": "c"},
        {"id": 2, "Status": "draft", "email": "c4n4ry", "_op": "u"},
        {"id": 3, "email": "c4n4ry", "_op": "u", "_unchanged": ["Status"]},
        {"id": 4, "Status": "draft", "email": "c4n4ry", "_op": "d"},
        {"id": 5, "Status": None, "email": "c4n4ry", "_op": "r"},
    ]
    others = ["total", "Status", "email"]
    assert left(mine, *rows) == [
        {"id": 2, "_op": "d", "_unchanged": others},
        {"id": 3, "_op": "u", "_unchanged": others},
        {"id": 4, "_op": "d", "_unchanged": others},
    ]


def test_row_enters_and_leaves_by_both_images() -> None:
    """With old rows a row that the copy never had is not deleted."""
    table = replace(ORDERS, identity=Identity.FULL)
    mine = leaving(table, where="status = 'paid'")
    paid, draft = {"id": 1, "Status": "paid"}, {"id": 1, "Status": "draft"}
    assert left(mine, {**paid, "_op": "u", "_before": draft}) == [{**paid, "_op": "c"}]
    assert left(mine, {**draft, "_op": "u", "_before": paid}) == [{**paid, "_op": "d"}]
    assert left(mine, {**draft, "_op": "u", "_before": draft}, {**draft, "_op": "d"}) == []
    [row] = left(mine, {**paid, "_op": "u", "_before": paid})
    assert row["_op"] == "u"


def test_condition_on_the_key_alone_needs_no_row_again() -> None:
    """Whatever was not sent: the row fits as long as it has its key. Only one that gets a fitting key is new."""
    mine = leaving(where="id < 4")
    rows: list[dict[str, Any]] = [
        {"id": 1, "email": "x", "_op": "u", "_unchanged": ["Status"]},
        {"id": 5, "email": "c4n4ry", "_op": "u", "_unchanged": ["Status"]},
        {"id": 5, "_op": "d", "_unchanged": ["total", "Status", "email"]},
        {"id": 6, "_op": "d", "_unchanged": ["total", "Status", "email"]},
        {"id": 3, "_op": "c", "_unchanged": ["Status"], "_before": {"id": 6}},
        {"id": 1, "_op": "d", "_unchanged": ["total", "Status", "email"]},
        {"id": 2, "_op": "c", "_unchanged": ["Status"], "_before": {"id": 1}},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=ORDERS.change_schema)
    found, again = mine.leave(ChangeBatch(ORDERS, np.arange(7), batch))
    assert [(row["_op"], row["id"], row["_before"]) for row in found.rows.to_pylist()] == [
        ("u", 1, None),
        ("c", 3, None),
        ("d", 1, None),
        ("c", 2, {"id": 1}),
    ]
    assert again is not None
    assert again.keys.to_pylist() == [{"id": 3}]


def test_error_at_a_value_names_the_table_and_the_setting_and_no_value() -> None:
    mine = leaving(computed={"number": "CAST(email AS integer)"})
    with pytest.raises(ConfigurationError, match="the computed column number cannot be applied") as refused:
        left(mine, {"id": 1, "email": "c4n4ry", "_op": "c"})
    assert "c4n4ry" not in f"{refused.value} {refused.value.remedy}"
    # The remedy: write it for such values, too.
    fitting = "CASE WHEN email NOT LIKE '%a%' AND email NOT LIKE '%4%' THEN CAST(email AS integer) END"
    rows: list[dict[str, Any]] = [
        *({"id": 1, "email": text, "_op": "c"} for text in ("c4n4ry", "17")),
        {"_op": "t"},
    ]
    assert [row.get("number") for row in left(leaving(computed={"number": fitting}), *rows)] == [None, 17, None]


def test_rules_that_another_process_gets_are_the_same() -> None:
    mine = rules(where="id > 1", computed={"double": "total * 2"})
    theirs = pickle.loads(pickle.dumps(mine)).shape(ORDERS)  # noqa: S301  our own bytes
    assert theirs is not None
    rows = pa.RecordBatch.from_pylist([{"id": 1}, {"id": 2}], schema=ORDERS.row_schema)
    assert theirs.rows(rows).column("id").to_pylist() == [2]


# ── spools ──────────────────────────────────────────────────────────────────────────────────────────────────


class OneEvent:
    """A stream that has one event."""

    ready = False

    def __init__(self, event: StreamEvent) -> None:
        self.event = event

    def poll(self) -> list[StreamEvent]:
        return [self.event]


def test_spool_has_the_rows_that_leave_and_its_transaction_their_number() -> None:
    """Rows of sub-transactions that were rolled back do not count twice; rows without a column are read again."""
    mine = rules(where="status = 'paid'")
    inner, notes = MemorySpool("1", {}), SpoolNotes()
    spool = PrivateSpool(inner, mine, notes)
    rows: list[dict[str, Any]] = [{"id": i, "Status": "paid" if i % 3 else "draft", "_op": "c"} for i in range(12)]
    rows[5] = {"id": 5, "_op": "u", "_unchanged": ["Status"]}
    for part in (rows[:6], rows[6:]):
        batch = pa.RecordBatch.from_pylist(part, schema=ORDERS.change_schema)
        spool.write([ChangeBatch(ORDERS, np.arange(6), batch)], np.array([7, 7, 7, 8, 8, 8], np.uint64))
    partial = {ID: KeySet(pa.table({"id": pa.array([5], pa.int32())}))}
    event = Committed(
        SpooledTransaction(9, Position("9"), 1, 6, spool.name, frozenset([8]), frozenset([ORDERS]), partial=partial)
    )
    stream = PrivateStream(OneEvent(event), mine, Position("1"), notes)  # type: ignore[arg-type]
    incomplete, committed = stream.poll()
    assert isinstance(incomplete, RowsIncomplete)
    assert (incomplete.table, incomplete.position, len(incomplete.keys)) == (ID, Position("1"), 1)
    assert isinstance(committed, Committed)
    assert committed.run.rows == 4
    kept = [b.rows.column("id").to_pylist() for batches, _ in inner._pieces for b in batches]
    assert kept == [[1, 2, 4, 5], [7, 8, 10, 11]]
    assert [list(b.index) for batches, _ in inner._pieces for b in batches] == [[0, 1, 2, 3]] * 2
    assert isinstance(committed.run, SpooledTransaction)
    left = [b.rows.column("id").to_pylist() for b in inner.batches(committed.run.aborted)]
    assert left == [[1, 2], [7, 8]]


def test_computed_time_with_a_zone_is_published_whole_from_every_source() -> None:
    [*_, column] = leaving(computed={"at": "CAST(TIMESTAMP '2026-01-01 00:00:00.25' AS timestamptz)"}).table.columns
    value = pa.array([250_000], column.type.arrow)
    for encoding in (mysql_columns.encoding("t.at", column, Modes()), postgres_columns.encoding(column, Modes())):
        assert encoding.convert(value).to_pylist() == ["1970-01-01T00:00:00.250000Z"]


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoint_has_the_rules_and_finds_every_change_of_them() -> None:
    first = rules(where="id > 1", computed={"x": "id"}, columns={"total": {"rename": "amount"}})
    stored = read_stored(with_stored({}, first, [ORDERS], {}))
    assert changed_policies(stored, first, [ORDERS]) == {}
    second = rules(where="id > 2", computed={"x": "total"}, columns={"id": {"rename": "nr"}})
    text = changed_policies(stored, second, [ORDERS])[ID]
    assert text == "where: id > 1 → id > 2, x: id → total, id: id → nr, total: amount → total"
    assert changed_policies({}, first, [ORDERS])[ID].startswith("where: all rows → id > 1")
    assert changed_policies(stored, PolicyRules({}), [ORDERS])[ID].startswith("where: id > 1 → all rows")


def test_table_of_the_log_is_known_as_the_source_has_it() -> None:
    """MySQL decodes an old log by it."""
    mine = rules(where="id > 1", computed={"x": "id"}, columns={"id": {"rename": "total"}, "total": {"rename": "id"}})
    logged = mine.table_leaving(ORDERS)
    assert ([c.name for c in logged.columns], logged.key) == (["total", "id", "Status", "email", "x"], ("total",))
    stored = read_stored(with_stored({}, mine, [ORDERS], {}))
    assert raw_of(logged, stored[ID]) == ORDERS


def test_table_of_the_log_is_known_before_it_has_a_row_under_the_settings_of_now() -> None:
    """The settings changed a name and a computed column, and the next start came before any row."""
    logged = rules(computed={"x": "id"}, columns={"total": {"rename": "amount"}}).table_leaving(ORDERS)
    now = rules(computed={"y": "id"}, columns={"total": {"rename": "price"}})
    stored = read_stored(with_stored({}, now, [ORDERS], {}))
    assert raw_of(logged, stored[ID]) == ORDERS


def test_computed_column_and_its_policy_can_be_taken_out_together() -> None:
    email = {"email": "mask"}
    first = rules(computed={"domain": "right(email, 3)"}, columns={**email, "domain": "mask"})
    stored = read_stored(with_stored({}, first, [ORDERS], {}))
    mine = rules(columns=email)
    mine.check([ORDERS], stored, [ID])
    assert changed_policies(stored, mine, [ORDERS])[ID].startswith("domain: mask → no policy")


def test_keys_leave_with_new_names_and_are_read_by_the_old_ones() -> None:
    mine = leaving(columns={"id": {"rename": "nr"}})
    keys = KeySet(pa.table({"id": pa.array([1], pa.int32())}))
    assert mine.keys(keys).keys.column_names == ["nr"]
    found = mine.raw_keys(mine.keys(keys))
    assert found is not None
    assert found.keys.equals(keys.keys)
