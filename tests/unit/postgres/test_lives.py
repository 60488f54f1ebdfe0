"""Under which name a change is captured when its table was dropped or renamed since."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.columns import as_attributes, as_logged, key_in
from cdcflow.sources.postgres.lives import Life, Lives, ended_lives, lives_as_json, lives_from_json
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.types import AttributeInfo, standing_in

A, B, C, AWAY = (TableId("public", name) for name in ("a", "b", "c", "_away"))


def never(table: TableId) -> bool:
    return False


def life(oid: int, table: TableId, end: int) -> Life:
    return Life(oid, table, Lsn(end))


def is_a(table: TableId) -> bool:
    return table == A


def test_name_that_is_gone_stays_until_the_stream_has_passed_its_end() -> None:
    """P61: the first start finds it missing, later ones wait for the same place; then it is off the list."""
    first = ended_lives([], {1: A, 2: B}, {2: B}, position=Lsn(10), end=Lsn(50), is_kept=never)
    assert first == (life(1, A, 50),)
    assert ended_lives(first, {2: B}, {2: B}, position=Lsn(49), end=Lsn(80), is_kept=never) == first
    assert ended_lives(first, {2: B}, {2: B}, position=Lsn(50), end=Lsn(80), is_kept=never) == ()
    assert lives_from_json(lives_as_json(first)) == first


def test_table_is_its_number_whatever_bears_its_name() -> None:
    """A table that is renamed, recreated or swapped begins a separate life; a name that returned is not an end."""
    assert ended_lives([], {1: A}, {1: B, 3: A}, position=Lsn(10), end=Lsn(50), is_kept=never) == (life(1, A, 50),)
    assert ended_lives([], {1: A, 2: B}, {1: B, 2: A}, position=Lsn(10), end=Lsn(50), is_kept=never) == (
        life(1, A, 50),
        life(2, B, 50),
    )
    twice = ended_lives([life(1, A, 50)], {1: B}, {1: C}, position=Lsn(10), end=Lsn(90), is_kept=never)
    assert twice == (life(1, A, 50), life(1, B, 90))
    assert ended_lives(twice, {1: C}, {1: A}, position=Lsn(10), end=Lsn(99), is_kept=never) == (
        life(1, B, 90),
        life(1, C, 99),
    )


def test_name_without_wildcards_stays_until_a_table_has_it_again() -> None:
    """It was captured, so a missing table is not a mistake in the settings."""
    before = [life(1, A, 50), life(2, B, 50)]
    assert ended_lives(before, {}, {}, position=Lsn(60), end=Lsn(90), is_kept=is_a) == (life(1, A, 50),)
    assert ended_lives(before, {}, {7: A}, position=Lsn(60), end=Lsn(90), is_kept=is_a) == ()


def test_message_identifies_which_name_of_a_table_it_is_of() -> None:
    """Its name at that time, then the current one; for a dropped table the last one, never a name that the settings
    exclude."""
    lives = Lives({1: C, 5: A}, (life(1, A, 50), life(1, B, 60), life(2, B, 60)), lambda table: table != AWAY)
    assert [lives.name(1, told) for told in (A, B, C, AWAY)] == [A, B, C, C]
    assert [lives.name(2, told) for told in (B, C, AWAY)] == [B, B, None]
    assert [lives.name(5, told) for told in (A, C)] == [A, A]
    assert [lives.captures(oid) for oid in (1, 2, 3, 5)] == [True, True, False, True]
    assert lives.is_ended(1, A)
    assert not lives.is_ended(5, A)
    assert lives.tables == {A, B}


def logged(*columns: tuple[str, int, str, pa.DataType]) -> Table:
    made = tuple(Column(name, number, ColumnType(text, arrow), number != 2) for name, number, text, arrow in columns)
    return Table(A, 1, made, ("id",))


def test_columns_of_a_table_that_is_gone_are_those_of_the_log() -> None:
    """T36: number, type and key, also where the type itself was dropped with its schema."""
    shape = logged(
        ("id", 2, "integer", pa.int32()),
        ("s", 4, "small", pa.int32()),
        ("d", 5, "money_like", pa.decimal128(8, 2)),
        ("m", 6, "mood", pa.string()),
        ("ds", 7, "small[]", pa.list_(pa.field("element", pa.int32()))),
    )
    assert [(a.number, a.name, a.not_null) for a in as_attributes(shape)][:2] == [(2, "id", True), (4, "s", False)]
    assert as_attributes(None) == ()

    def column(name: str, number: int, text: str, *, is_known: bool = False) -> AttributeInfo:
        return as_logged(AttributeInfo(name, number, 9999, -1, text), shape, is_known=is_known)

    known = column("id", 2, "integer", is_known=True)
    assert (known.not_null, known.base_oid, known.type_text) == (True, 0, "integer")
    altered = AttributeInfo("id", 2, 20, -1, "bigint")
    assert as_logged(altered, shape, is_known=True) == altered
    assert as_logged(altered, logged(), is_known=False) == altered
    assert (column("s", 4, "oid 9999").base_oid, column("s", 4, "oid 9999").type_text) == (23, "small")
    assert (column("d", 5, "oid 9999").base_oid, column("d", 5, "oid 9999").base_modifier) == (1700, (8 << 16 | 2) + 4)
    assert (column("m", 6, "oid 9999").base_oid, column("m", 6, "oid 9999").type_text) == (9999, "mood")
    assert column("ds", 7, "oid 9999").element_oid == 23
    assert standing_in(pa.string()) is None


def test_key_of_the_log_counts_where_the_message_has_its_columns() -> None:
    """REPLICA IDENTITY FULL does not show which columns were the key."""
    shape = logged(("id", 2, "integer", pa.int32()))
    assert key_in(shape, frozenset({"id", "v"})) == {"id"}
    assert key_in(shape, frozenset({"v"})) == frozenset()
