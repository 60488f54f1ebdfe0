"""Each policy on each type: what the column becomes, which values come out, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from cdcflow.config.columns import ColumnRule, TableRules
from cdcflow.errors import ConfigurationError, TableMisfit
from cdcflow.model.change import ChangeBatch, KeySet
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy.policies import PrivacyPolicy
from cdcflow.sources.privacy.rules import PolicyRules, with_stored
from cdcflow.sources.privacy.secret_keys import PolicyKey
from cdcflow.sources.privacy.source import kernels
from cdcflow.sources.privacy.successors import read_successors

SECRET = "5e8ff9bf55ba3508199d22e984129be6"  # noqa: S105  of these tests
TABLE = TableId("public", "users")
KEYED = {"key": "${env:POLICY_KEY}", "id": "k1"}

TYPES: dict[str, tuple[str, pa.DataType, object, str]] = {
    "text": ("text", pa.string(), "Ünï\0 c4n4ry", "Ünï\0 c4n4ry"),
    "empty": ("character varying(9)", pa.string(), "", ""),
    "json": ("jsonb", pa.string(), '{"a": 1}', '{"a": 1}'),
    "bool": ("boolean", pa.bool_(), True, "true"),
    "int": ("integer", pa.int32(), -7, "-7"),
    "big": ("bigint unsigned", pa.uint64(), 2**64 - 1, "18446744073709551615"),
    "float": ("double precision", pa.float64(), 0.1, "0.1"),
    "decimal": ("numeric(10,2)", pa.decimal128(10, 2), Decimal("-1.50"), "-1.50"),
    "date": ("date", pa.date32(), date(2020, 2, 29), "2020-02-29"),
    "moment": ("timestamp", pa.timestamp("us"), datetime(2020, 1, 1, 2), "2020-01-01 02:00:00.000000"),
    "zoned": (
        "timestamptz",
        pa.timestamp("us", "UTC"),
        datetime(2020, 1, 1, tzinfo=UTC),
        "2020-01-01 00:00:00.000000Z",
    ),
    "time": ("time", pa.duration("us"), timedelta(seconds=-1), "-1000000"),
}
NESTED: dict[str, tuple[str, pa.DataType, object]] = {
    "array": ("text[]", pa.list_(pa.field("element", pa.string())), ["c4n4ry"]),
    "interval": ("interval", pa.struct([("months", pa.int32())]), {"months": 1}),
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", SECRET)
    monkeypatch.setenv("SHORT", "c4n4ry-secret")


def policy(given: object) -> PrivacyPolicy:
    return PrivacyPolicy.of(ColumnRule.model_validate(given))


def applied(given: object, source: str, arrow: pa.DataType, values: list[Any]) -> tuple[Column, list[Any]]:
    column, convert = policy(given).apply(TABLE, Column("c", 1, ColumnType(source, arrow)))
    assert column is not None
    found = convert(pa.array(values, arrow))
    assert found.type == column.type.arrow
    return column, found.to_pylist()


@pytest.mark.parametrize("name", TYPES)
def test_hash_is_the_hmac_of_the_value_as_text(name: str) -> None:
    """Other programs compute the same hash, and equal values of different types join."""
    source, arrow, value, text = TYPES[name]
    expected = hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
    column, found = applied({"hash": "${env:POLICY_KEY}"}, source, arrow, [value, None, value])
    assert found == [expected, None, expected]
    assert column.type.source == "hash"
    assert applied({"hash": KEYED}, source, arrow, [value])[1] == [f"k1:{expected}"]


@pytest.mark.parametrize("name", TYPES)
def test_encrypted_values_are_equal_for_equal_values_and_can_be_decrypted(name: str) -> None:
    source, arrow, value, text = TYPES[name]
    _, (first, none, second) = applied({"encrypt": KEYED}, source, arrow, [value, None, value])
    assert (first, none) == (second, None)
    assert first.startswith("k1:")
    assert PolicyKey("k1", SECRET.encode()).decrypt(first) == text.encode()
    with pytest.raises(ValueError, match="another key"):
        PolicyKey("k1", SECRET[::-1].encode()).decrypt(first)
    with pytest.raises(ValueError, match="another key"):
        PolicyKey("k2", SECRET.encode()).decrypt(first)


def test_bytes_are_hashed_and_encrypted_without_a_text() -> None:
    value = b"\xff\x00c4n4ry"
    expected = hmac.new(SECRET.encode(), value, hashlib.sha256).hexdigest()
    assert applied({"hash": "${env:POLICY_KEY}"}, "bytea", pa.binary(), [value])[1] == [expected]
    (found,) = applied({"encrypt": KEYED}, "bytea", pa.binary(), [value])[1]
    assert PolicyKey("k1", SECRET.encode()).decrypt(found) == value


@pytest.mark.parametrize("name", [*TYPES, *NESTED])
def test_masks_and_nulls_hide_values_of_every_type(name: str) -> None:
    source, arrow, value = (TYPES[name] if name in TYPES else NESTED[name])[:3]
    assert applied("mask", source, arrow, [value, None])[1] == ["****", None]
    column, found = applied("null", source, arrow, [value, None])
    assert (found, column.type, column.nullable) == ([None, None], ColumnType(source, arrow), True)
    dropped, _ = policy("drop").apply(TABLE, Column("c", 1, ColumnType(source, arrow)))
    assert dropped is None


def test_mask_keeps_the_end_of_long_values_only() -> None:
    """A mask that shows all of a short value masks nothing; and no length must be visible."""
    values = ["4111111111111234", "12345678", "1234567", "1234", "", None, "Zürich-Ö"]
    _, found = applied({"mask": {"keep_last": 4}}, "text", pa.string(), values)
    assert found == ["****1234", "****5678", "****", "****", "****", None, "****ch-Ö"]
    assert applied({"mask": {"keep_last": 2}}, "integer", pa.int32(), [12345, 7])[1] == ["****45", "****"]


def test_truncated_values_are_whole_characters_or_bytes() -> None:
    assert applied({"truncate": 3}, "character varying(10)", pa.string(), ["Ünïcode", "a", None])[1] == [
        "Ünï",
        "a",
        None,
    ]
    assert applied({"truncate": 2}, "blob", pa.binary(), [b"\x00\x01\x02"])[1] == [b"\x00\x01"]


def test_constants_have_the_type_of_the_column_and_leave_null_alone() -> None:
    assert applied({"constant": 5}, "integer", pa.int32(), [1, None])[1] == [5, None]
    assert applied({"constant": False}, "boolean", pa.bool_(), [True])[1] == [False]
    assert applied({"constant": "1900-01-01"}, "date", pa.date32(), [date(2020, 1, 1)])[1] == [date(1900, 1, 1)]
    assert applied({"constant": "1.50"}, "numeric(10,2)", pa.decimal128(10, 2), [Decimal(7)])[1] == [Decimal("1.50")]
    assert applied({"constant": "-"}, "text", pa.string(), ["x"])[1] == ["-"]


@pytest.mark.parametrize(
    ("given", "source", "arrow"),
    [
        ({"truncate": 3}, "jsonb", pa.string()),
        ({"truncate": 3}, "uuid", pa.string()),
        ({"truncate": 3}, "integer", pa.int32()),
        ({"hash": KEYED}, "text[]", NESTED["array"][1]),
        ({"encrypt": KEYED}, "interval", NESTED["interval"][1]),
        ({"mask": {"keep_last": 1}}, "bytea", pa.binary()),
        ({"constant": "c4n4ry"}, "integer", pa.int32()),
        ({"constant": 300}, "smallint", pa.int8()),
        ({"constant": "x"}, "text[]", NESTED["array"][1]),
    ],
)
def test_policy_that_makes_no_sense_for_a_type_is_refused_with_a_remedy(
    given: object, source: str, arrow: pa.DataType
) -> None:
    with pytest.raises(ConfigurationError, match=r"tables: public\.users: .*column c") as refused:
        applied(given, source, arrow, [])
    assert refused.value.remedy
    assert refused.value.runbook == "column-policies"


def test_short_keys_are_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"the key \$\{env:SHORT\} has less than 32 characters") as refused:
        policy({"hash": "${env:SHORT}"})
    assert "c4n4ry" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="MISSING"):
        policy({"hash": "${env:MISSING}"})
    assert SECRET not in repr(policy({"hash": KEYED})) + policy({"hash": KEYED}).text


@pytest.mark.parametrize(
    "given",
    ["hsah", {}, {"mask": {}, "truncate": 3}, {"hash": SECRET}, {"truncate": 0}, {"hash": {"id": "x"}}, {"drop": True}],
)
def test_settings_that_are_not_exactly_one_policy_are_refused(given: object) -> None:
    with pytest.raises(ValidationError) as refused:
        ColumnRule.model_validate(given)
    assert SECRET not in str(refused.value)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────


def column(name: str, arrow: pa.DataType | None = None, **more: Any) -> Column:
    return Column(name, sum(name.encode()), ColumnType("text", arrow or pa.string()), **more)


USERS = Table(TABLE, 1, (column("id"), column("email"), column("ssn"), column("note")), ("id",), Identity.FULL)


def rules(columns: dict[str, object], pattern: str = "public.users", **more: object) -> PolicyRules:
    return PolicyRules({pattern: TableRules.model_validate({"columns": columns, **more})})


def test_old_rows_have_the_same_policies_and_dropped_columns_are_in_no_list() -> None:
    """Unchanged, absent, NULL and dropped are four things."""
    schema = USERS.change_schema
    rows = pa.RecordBatch.from_pylist(
        [
            {"id": "1", "email": "c4n4ry", "ssn": "c4n4ry", "_op": "c"},
            {"id": "1", "_op": "u", "_unchanged": ["ssn"], "email": "c4n4ry", "_before": {"id": "1", "ssn": "c4n4ry"}},
            {"id": "1", "_op": "u", "_unchanged": ["email", "ssn", "note"], "_before": {"id": "1", "email": "c4n4ry"}},
            {"id": "1", "_op": "d", "email": None},
            {"_op": "t"},
        ],
        schema=schema,
    )
    table = rules({"ssn": "drop", "email": "mask", "note": {"constant": "x"}}).shape(USERS)
    assert table is not None
    found = table.changes(ChangeBatch(USERS, np.arange(5), rows)).rows
    assert found.schema.names == ["id", "email", "note", "_op", "_unchanged", "_before"]
    assert found.column("email").to_pylist() == ["****", "****", None, None, None]
    assert found.column("note").to_pylist() == [None] * 5
    assert found.column("_unchanged").to_pylist() == [None, None, ["email", "note"], None, None]
    before = found.column("_before").to_pylist()
    assert before[0] is None
    assert before[1:3] == [{"id": "1", "email": None, "note": None}, {"id": "1", "email": "****", "note": None}]


def test_values_under_an_old_row_that_is_null_do_not_leave() -> None:
    """Arrow may hold anything where a structure is NULL."""
    child = [pa.array(["1"]), pa.array(["c4n4ry"]), pa.array(["c4n4ry"]), pa.array(["c4n4ry"])]
    before = pa.StructArray.from_arrays(child * 1, fields=list(USERS.before_type), mask=pa.array([True]))
    own = [pa.array(["1"])] * 4
    one = pa.StructArray.from_arrays(child, fields=list(USERS.before_type))
    both = pa.concat_arrays([before, one])
    columns = [pa.concat_arrays([c, c]) for c in own]
    rows = pa.RecordBatch.from_arrays(
        [*columns, pa.array(["u", "u"]), pa.nulls(2, USERS.change_schema.field("_unchanged").type), both],
        schema=USERS.change_schema,
    )
    table = rules({name: {"mask": {"keep_last": 1}} for name in ("email", "ssn", "note")}).shape(USERS)
    assert table is not None
    found = table.changes(ChangeBatch(USERS, np.arange(2), rows)).rows.column("_before")
    assert found.field(1).to_pylist() == [None, "****y"]


@pytest.mark.parametrize("given", ["drop", "null", "mask", {"truncate": 1}, {"constant": "x"}])
def test_policies_that_would_make_keys_equal_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="column id is part of the key") as refused:
        rules({"id": given}).shape(USERS)
    assert "use hash or encrypt" in str(refused.value.remedy)


def test_keys_of_a_table_are_hashed_like_its_rows_and_only_encrypted_ones_can_be_read_back() -> None:
    keys = KeySet(pa.table({"id": ["a", "b"]}))
    hidden = rules({"id": {"hash": KEYED}}).shape(USERS)
    readable = rules({"id": {"encrypt": KEYED}}).shape(USERS)
    assert hidden is not None
    assert readable is not None
    assert hidden.raw_keys(hidden.keys(keys)) is None
    found = readable.raw_keys(readable.keys(keys))
    assert found is not None
    assert found.keys.equals(keys.keys)
    sealed = readable.seal('["a"]')
    assert sealed is not None
    assert '"a"' not in sealed
    assert readable.unseal(sealed) == '["a"]'


def test_rules_that_another_process_gets_have_their_keys() -> None:
    """An executor has neither this machine's environment nor its files."""
    mine = rules({"id": {"hash": KEYED}})
    theirs = pickle.loads(pickle.dumps(mine))  # noqa: S301  our own bytes
    keys = KeySet(pa.table({"id": ["a"]}))

    def keys_of(these: PolicyRules) -> pa.Table:
        found = these.shape(USERS)
        assert found is not None
        return found.keys(keys).keys

    assert keys_of(theirs).equals(keys_of(mine))


# ── which table and which column ────────────────────────────────────────────────────────────────────────────


def test_column_that_a_table_does_not_have_stops_it_with_the_nearest_name() -> None:
    """A typo must not leave a column unprotected."""
    with pytest.raises(ConfigurationError, match="no column emial, which has a policy") as refused:
        rules({"emial": "mask"}).check([USERS], {}, ())
    assert "did you mean email?" in str(refused.value.remedy)
    rules({"emial": "mask"}, optional=["EMIAL"]).check([USERS], {}, ())
    rules({"EMAIL": "mask"}).check([USERS], {}, ())


def test_table_that_is_not_captured_stops_the_start_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match=r"public\.user has policies, and is no captured table") as refused:
        rules({"email": "mask"}, "public.user").check([USERS], {}, ())
    assert "did you mean public.users?" in str(refused.value.remedy)


def test_table_that_was_dropped_stops_nothing_and_a_new_one_that_may_be_it_does_not_leave() -> None:
    """A renamed table would be captured without its policies, also at later starts, and if its name is used again."""
    other, new = TableId("public", "other"), replace(USERS, id=TableId("public", "users_old"))
    mine = rules({"email": "mask"})
    mine.check_names([other], {TABLE, other})
    assert mine.successors == {}
    mine.check_names([other, new.id], {TABLE, other})
    for captured in ({TABLE, other}, {TABLE, other, new.id}):
        with pytest.raises(TableMisfit, match=r"may be public\.users, which has policies"):
            mine.shape(new)
        with pytest.raises(TableMisfit):
            mine.latest(new.id)
        assert mine.known_leaving(new).id == new.id
        mine.check_names([other, new.id], captured)
    again = rules({"email": "mask"})
    again.successors = read_successors(with_stored({}, mine, [], {}))
    again.check_names([other, new.id, TABLE], {TABLE, other, new.id})
    assert again.successors == mine.successors
    named = PolicyRules({"public.users": TableRules(columns={"email": "mask"}), "public.users_old": TableRules()})
    named.successors = again.successors
    named.check_names([other, new.id], {TABLE, other, new.id})
    assert named.shape(new) is None


@pytest.mark.parametrize("pattern", ["public.users", "public.*", "*.*"])
def test_column_that_is_renamed_stops_its_table_whatever_named_it(pattern: str) -> None:
    """Its values would leave under the new name."""
    mine = rules({"email": "mask"}, pattern)
    mine.check([USERS], {}, ())
    renamed = Table(TABLE, 1, (USERS.columns[0], column("mail"), *USERS.columns[2:]), ("id",), Identity.FULL)
    with pytest.raises(ConfigurationError, match="no column email, which has a policy") as refused:
        mine.shape(renamed)
    assert "list both under `optional`" in str(refused.value.remedy)
    both = rules({"email": "mask", "mail": "mask"}, pattern, optional=["email", "mail"])
    for table in (USERS, renamed, USERS):
        found = both.shape(table)
        assert found is not None
        assert found.policies


def test_exact_name_decides_before_patterns_and_earlier_patterns_before_later_ones() -> None:
    given = {
        "*.*": {"columns": {"email": "null", "note": "null", "ssn": "null"}},
        "public.*": {"columns": {"note": "drop"}},
        "public.users": {"columns": {"email": "mask"}},
    }
    mine = PolicyRules({name: TableRules.model_validate(one) for name, one in given.items()})
    assert mine.text_of(USERS) == {"email": "mask", "note": "null", "ssn": "null"}


def test_doctor_names_patterns_and_columns_that_match_nothing() -> None:
    given = {"sales.*": {"columns": {"email": "mask"}}, "public.*": {"columns": {"iban": "mask", "email": "mask"}}}
    mine = PolicyRules({name: TableRules.model_validate(one) for name, one in given.items()})
    assert mine.unused_names([USERS]) == [
        "sales.* matches no captured table",
        "no table that public.* matches has a column iban",
    ]


def test_names_with_special_characters_are_names() -> None:
    """A name from the source or the settings is data."""
    hostile = "e\"'; DROP TABLE x; --\\ ${env:HOME} *"
    table = Table(TableId("public", "we.ird\" '*"), 1, (column("id"), column(hostile)), ("id",))
    mine = rules({hostile: "mask"}, 'public."we.ird"" \'*"')
    mine.check([table], {}, ())
    found = mine.shape(table)
    assert found is not None
    assert found.rows(pa.RecordBatch.from_pydict({"id": ["1"], hostile: ["c4n4ry"]})).column(1).to_pylist() == ["****"]
    assert rules({hostile: "mask"}, "public.users*").shape(table) is None


def test_default_of_older_rows_has_the_policy_too() -> None:
    """ADD COLUMN … DEFAULT gives rows a value that is in no change."""
    table = Table(TABLE, 1, (column("id"), column("email", missing="c4n4ry")), ("id",))
    found = rules({"email": {"hash": "${env:POLICY_KEY}"}}).shape(table)
    assert found is not None
    expected = hmac.new(SECRET.encode(), b"c4n4ry", hashlib.sha256).hexdigest()
    assert found.table.columns[1].missing == expected


def test_default_of_older_rows_that_is_bytes_has_the_policy_of_its_bytes() -> None:
    """The server's text of bytes is hexadecimal. Its own hash would be that of no row."""
    table = Table(TABLE, 1, (column("id"), column("email", pa.binary(), missing="\\x00ffab")), ("id",))
    hashed = rules({"email": {"hash": "${env:POLICY_KEY}"}}).shape(table)
    cut = rules({"email": {"truncate": 2}}).shape(table)
    assert hashed is not None
    assert hashed.table.columns[1].missing == hmac.new(SECRET.encode(), b"\x00\xff\xab", hashlib.sha256).hexdigest()
    assert cut is not None
    assert cut.table.columns[1].missing == "\\x00ff"


def test_doctor_reports_that_hashes_are_slow_where_nothing_was_compiled() -> None:
    """A capture that takes several times as long would show the reason nowhere else."""
    found = kernels(None)
    assert found.level == "warning"
    assert "libssl-dev" in str(found.remedy)
    assert PolicyRules({"*.*": TableRules.model_validate({"columns": {"a": {"hash": KEYED}}})}).need_keys
    assert not PolicyRules({"*.*": TableRules.model_validate({"columns": {"a": "mask"}})}).need_keys
