"""Tables, types, positions and checkpoints: how they are written, and how they are read back."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, SourceIdentity
from cdcflow.model.table import Column, Identity, Table, TableId, table_from_json
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.lsn import Lsn

NUMERIC = ColumnType("numeric(10,2)", pa.decimal128(10, 2))
STAMP = ColumnType("timestamptz", pa.timestamp("us", "UTC"))
ITEMS = ColumnType("text[]", pa.list_(pa.field("element", pa.string())))

TABLE = Table(
    TableId("shop", "Orders"),
    16384,
    (Column("id", 1, NUMERIC, nullable=False), Column("at", 4, STAMP), Column("items", 5, ITEMS, True, "{a}")),
    ("id",),
    Identity.FULL,
)


def test_table_is_read_back_unchanged() -> None:
    """Only the schema history defines the log's columns."""
    text = json.dumps(TABLE.to_json())
    assert table_from_json(json.loads(text)) == TABLE
    assert json.loads(text) == {
        "schema": "shop",
        "name": "Orders",
        "incarnation": 16384,
        "columns": [
            {"name": "id", "number": 1, "type": NUMERIC.to_json(), "nullable": False, "missing": None},
            {"name": "at", "number": 4, "type": STAMP.to_json(), "nullable": True, "missing": None},
            {"name": "items", "number": 5, "type": ITEMS.to_json(), "nullable": True, "missing": "{a}"},
        ],
        "key": ["id"],
        "identity": "full",
    }


@pytest.mark.parametrize("identity", Identity)
def test_each_identity_is_written_by_its_name(identity: Identity) -> None:
    """Logs that older versions wrote contain the names."""
    assert replace(TABLE, identity=identity).to_json()["identity"] == identity.name.lower()


def test_equal_shapes_that_were_read_twice_are_one_object() -> None:
    """Shapes are compared with every batch: the same object is found equal at once."""
    assert table_from_json(TABLE.to_json()) is table_from_json(TABLE.to_json())
    assert hash(replace(TABLE)) == hash(TABLE)
    assert len({TABLE, replace(TABLE), replace(TABLE, incarnation=2)}) == 2


@pytest.mark.parametrize("type_", [NUMERIC, STAMP, ITEMS], ids=lambda t: t.source)
def test_type_is_read_exactly_and_is_readable(type_: ColumnType) -> None:
    """Arrow's text of a type is incomplete (it misses the name of a list's element)."""
    written = type_.to_json()
    found = ColumnType.from_json(json.loads(json.dumps(written)))
    assert found == type_
    assert found.arrow.equals(type_.arrow, check_metadata=True)
    assert hash(found) == hash(type_)
    assert written.keys() == {"source", "arrow", "ipc"}
    assert (written["source"], written["arrow"]) == (type_.source, str(type_.arrow))


def test_types_that_differ_in_the_server_s_name_or_in_arrow_are_two() -> None:
    """A column with a new type is a different shape."""
    assert len({NUMERIC, ColumnType("numeric(10,2)", pa.string()), ColumnType("money", NUMERIC.arrow)}) == 3


def test_column_is_nullable_and_without_a_default_unless_specified() -> None:
    """What a source does not know must not be claimed."""
    assert Column("a", 1, NUMERIC) == Column("a", 1, NUMERIC, nullable=True, missing=None)


def test_tables_are_sorted_by_schema_and_table() -> None:
    """Operators read lists of tables."""
    assert sorted([TableId("b", "a"), TableId("a", "z"), TableId("a", "b")])[0] == TableId("a", "b")
    assert str(TableId("public", "orders")) == "public.orders"


@pytest.mark.parametrize(
    ("identity", "key", "names"),
    [
        (Identity.KEY, ("at",), ["at"]),
        (Identity.NOTHING, ("at",), ["at"]),
        (Identity.FULL, ("at",), ["id", "at", "items"]),
        (Identity.KEY, (), ["id", "at", "items"]),
    ],
)
def test_the_old_row_has_the_key_or_under_full_everything(
    identity: Identity, key: tuple[str, ...], names: list[str]
) -> None:
    """`_before` holds the key columns that the source sends, in the table's order."""
    table = replace(TABLE, key=key, identity=identity)
    assert [f.name for f in table.before_type] == names
    assert table.key_columns == (key or ("id", "at", "items"))


def test_log_s_columns_are_set_in_every_row_and_a_table_s_need_not_be() -> None:
    """A deleted row has only its key, so a table's own columns may be NULL; offset, transaction, time and op never."""
    log = TABLE.log_schema
    assert log.names == ["_offset", "_txn", "_commit_ts", "id", "at", "items", "_op", "_unchanged", "_before"]
    assert [f.name for f in log if not f.nullable] == ["_offset", "_txn", "_commit_ts", "_op"]
    assert log.field("_offset").type == log.field("_txn").type == pa.int64()
    assert log.field("_commit_ts").type == pa.timestamp("us", tz="UTC")
    assert TABLE.change_schema == pa.schema(list(log)[3:])
    assert TABLE.row_schema == pa.schema(list(log)[3:6])
    element = log.field("_unchanged").type.field(0)
    assert (element.name, element.type) == ("element", pa.string())


# ── positions of a log ───────────────────────────────────────────────────────────────────────────────────────────

CHECKPOINT = Checkpoint(
    position=Position("16/B374D848"),
    next_offset=Offset(42),
    next_transaction=7,
    cut=3,
    commit_clock=1_700_000_000_000_000,
    epoch=Epoch(5),
    progress={"tables": {"public.orders": {"state": "done"}}},
    source={"slot": "cdcflow_shop"},
)


def test_checkpoint_is_read_back_unchanged() -> None:
    """A restart has nothing else."""
    text = CHECKPOINT.to_json()
    assert Checkpoint.from_json(text) == CHECKPOINT == Checkpoint.from_json(text.encode())
    assert "\n" not in text
    assert json.loads(text) == {
        "version": 1,
        "position": "16/B374D848",
        "next_offset": 42,
        "next_transaction": 7,
        "cut": 3,
        "commit_clock": 1_700_000_000_000_000,
        "epoch": 5,
        "progress": {"tables": {"public.orders": {"state": "done"}}},
        "source": {"slot": "cdcflow_shop"},
    }


@pytest.mark.parametrize("other", ["16/B374D848", Offset(42), Lsn(0x16B374D848)], ids=["text", "offset", "LSN"])
def test_position_is_not_compared_with_another_kind(other: object) -> None:
    """False would mean that a position is not reached; mypy does not see what a file or a driver returns."""
    with pytest.raises(TypeError, match="a Position is compared with a"):
        assert Position("16/B374D848") != other
    with pytest.raises(TypeError):
        assert Position("1") < Position("2")  # type: ignore[operator]
    assert Position("1") == Position("1") != Position("2")
    assert Position("1") != None  # noqa: E711


def test_a_log_begins_with_the_first_row_and_nothing_of_the_source() -> None:
    """Offsets and transactions count from 1; cut 0 means that no cut was written yet."""
    found = Checkpoint()
    assert (found.position, found.next_offset, found.next_transaction, found.cut) == (None, 1, 1, 0)
    assert (found.commit_clock, found.epoch, found.progress, found.source) == (0, 0, {}, {})


def test_a_checkpoint_of_a_newer_cdcflow_is_not_guessed_at() -> None:
    """What it means there is unknown here."""
    with pytest.raises(ValueError, match="version 2 is newer than 1"):
        Checkpoint.from_json(CHECKPOINT.to_json().replace('"version":1', '"version":2'))


def test_identity_is_read_back_unchanged_also_from_before_timelines() -> None:
    """Logs of one database must never be mistaken for another's."""
    identity = SourceIdentity("postgres", "7301", "shop", "3")
    assert SourceIdentity.from_json(identity.to_json()) == identity
    assert identity.to_json() == {"kind": "postgres", "system_id": "7301", "database": "shop", "timeline": "3"}
    old = SourceIdentity.from_json({"kind": "mysql", "system_id": "u", "database": "d"})
    assert old == SourceIdentity("mysql", "u", "d", "")
