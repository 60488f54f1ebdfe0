"""What a current-state table does when its source table changes shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.merge.evolution import Add, Evolution, Rename, Target, TargetColumn, Widen, evolve
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

INT, BIG, TEXT = pa.int32(), pa.int64(), pa.string()


def shape(*columns: tuple[Any, ...], key: tuple[str, ...] = ("id",), incarnation: int = 1) -> Table:
    """shape(("id", 1, INT), ("x", 2, TEXT, "missing text"))"""
    made = tuple(
        Column(name, number, ColumnType(str(arrow), arrow), missing=more[0] if more else None)
        for name, number, arrow, *more in columns
    )
    return Table(TableId("public", "orders"), incarnation, made, key)


FIRST = shape(("id", 1, INT), ("note", 2, TEXT))


def target_of(table: Table) -> Target:
    return evolve(None, [table]).target


def follow(*shapes: Table) -> Evolution:
    return evolve(target_of(FIRST), shapes)


def test_an_added_column_brings_its_default_to_the_rows_that_are_there() -> None:
    """G21, P18: the source gave old rows the constant without a word in its log."""
    found = follow(FIRST, shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT, "7")))
    assert found.steps == (Add(TargetColumn("qty", 3, "int"), "CAST('7' AS int)"),)
    assert found.defaults == {3: "CAST('7' AS int)"}


def test_a_default_we_cannot_write_stops_by_name() -> None:
    """Old rows must not silently get NULL where the source shows a value."""
    with pytest.raises(ConfigurationError, match=r"public\.orders.*column tags"):
        follow(shape(("id", 1, INT), ("note", 2, TEXT), ("tags", 3, pa.list_(TEXT), "{a}")))


@pytest.mark.parametrize(
    ("old", "new", "type_"),
    [
        (INT, BIG, "bigint"),
        (pa.int16(), INT, "int"),
        (pa.float32(), pa.float64(), "double"),
        (pa.decimal128(10, 2), pa.decimal128(12, 3), "decimal(12,3)"),
        (INT, pa.decimal128(12, 2), "decimal(12,2)"),
    ],
    ids=str,
)
def test_a_wider_type_widens_the_column(old: pa.DataType, new: pa.DataType, type_: str) -> None:
    """G23: every old value is exactly a new one."""
    found = evolve(target_of(shape(("id", 1, INT), ("v", 2, old))), [shape(("id", 1, INT), ("v", 2, new))])
    assert found.steps == (Widen("v", type_),)


def test_a_narrower_type_leaves_the_wide_column() -> None:
    """G24: the table's type holds the new values too, so nothing needs to be cast away."""
    wide = target_of(shape(("id", 1, INT), ("v", 2, BIG)))
    found = evolve(wide, [shape(("id", 1, INT), ("v", 2, INT))])
    assert found.steps == ()
    assert found.target == wide


@pytest.mark.parametrize(
    ("old", "new"),
    [(TEXT, INT), (INT, TEXT), (pa.decimal128(10, 2), pa.decimal128(10, 4)), (pa.float64(), pa.decimal128(10, 2))],
    ids=str,
)
def test_a_type_that_does_not_hold_the_old_values_stops_by_name(old: pa.DataType, new: pa.DataType) -> None:
    """G24: no silent NULL by a cast; the message names column, both types and what to do."""
    with pytest.raises(ConfigurationError, match=r"column v was .* and is .* now") as caught:
        evolve(target_of(shape(("id", 1, INT), ("v", 2, old))), [shape(("id", 1, INT), ("v", 2, new))])
    assert "cdcflow backfill public.orders" in str(caught.value)


def test_a_renamed_column_is_followed_by_its_number() -> None:
    """G25, P20: the values stay with the column, whatever it is called."""
    found = follow(shape(("id", 1, INT), ("remark", 2, TEXT)))
    assert found.steps == (Rename("note", "remark"),)


def test_columns_that_swap_their_names_do_not_meet_on_the_way() -> None:
    """G25: two columns of one name cannot exist, not even between two statements."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT), ("b", 3, TEXT)))
    found = evolve(before, [shape(("id", 1, INT), ("b", 2, TEXT), ("a", 3, TEXT))])
    names = {"id", "a", "b"}
    for step in found.steps:
        assert isinstance(step, Rename)
        assert step.old in names
        assert step.new not in names
        names = names - {step.old} | {step.new}
    assert [(c.name, c.number) for c in found.target.columns] == [("id", 1), ("b", 2), ("a", 3)]


def test_a_dropped_column_stays_in_the_table() -> None:
    """What was captured is not thrown away because the source does not need it any more."""
    found = follow(shape(("id", 1, INT)))
    assert found.steps == ()
    assert [c.name for c in found.target.columns] == ["id", "note"]


def test_a_column_that_comes_back_under_its_name_is_another_one() -> None:
    """G27, P19: the old column's values must not show up in the new one."""
    found = follow(shape(("id", 1, INT)), shape(("id", 1, INT), ("note", 3, INT)))
    assert found.steps == (Rename("note", "note__dropped_2"), Add(TargetColumn("note", 3, "int"), None))


def test_a_table_made_again_takes_over_columns_by_name_and_nothing_else() -> None:
    """P25: numbers of a new incarnation mean other columns; none of the old rows lives on."""
    found = follow(FIRST, shape(("note", 1, TEXT), ("id", 2, INT), incarnation=2))
    assert found.fresh
    assert found.steps == ()
    assert {c.name: c.number for c in found.target.columns} == {"id": 2, "note": 1}


def test_another_key_stops_by_name() -> None:
    """Rows keyed one way cannot be found by another."""
    with pytest.raises(ConfigurationError, match=r"its key was \(id\) and is \(id, note\) now"):
        follow(shape(("id", 1, INT), ("note", 2, TEXT), key=("id", "note")))


def test_names_that_differ_only_in_case_stop_by_name() -> None:
    """Spark would take the one for the other."""
    with pytest.raises(ConfigurationError, match="column Note"):
        evolve(None, [shape(("id", 1, INT), ("note", 2, TEXT), ("Note", 3, TEXT))])


def test_our_own_column_names_are_refused() -> None:
    """A source column called _missing would be taken for ours."""
    with pytest.raises(ConfigurationError, match="column _missing"):
        evolve(None, [shape(("id", 1, INT), ("_missing", 2, TEXT))])


def test_the_description_comes_back_as_it_was_written() -> None:
    """The table's own property is the only memory of its column numbers."""
    target = target_of(FIRST)
    assert Target.from_json(target.to_json()) == target
    with pytest.raises(ConfigurationError, match="newer cdcflow"):
        Target.from_json(target.to_json().replace('"version":1', '"version":99'))


def numbers(target: Target) -> dict[str, int]:
    return {c.name: c.number for c in target.columns}


def test_columns_that_the_new_table_lacks_get_numbers_that_nobody_has() -> None:
    """P25: a number that the new table's column bears, or gets later, would give it the old one's values."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT), ("b", 3, TEXT), ("c", 9, TEXT)))
    made_again = shape(("id", 1, INT), ("x", 2, TEXT), ("c", 3, TEXT), incarnation=2)
    assert numbers(evolve(before, [made_again]).target) == {"id": 1, "a": 10, "b": 11, "c": 3, "x": 2}


def test_the_greatest_number_may_be_the_new_table_s() -> None:
    """Free is what lies above both, whoever has more."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT)))
    made_again = shape(("id", 1, INT), ("b", 5, TEXT), incarnation=2)
    assert numbers(evolve(before, [made_again]).target) == {"id": 1, "a": 6, "b": 5}


def test_a_column_that_the_new_table_has_in_other_letters_is_the_same() -> None:
    """Spark does not tell names apart by case, so it cannot have both."""
    before = target_of(shape(("id", 1, INT), ("Note", 2, TEXT)))
    found = evolve(before, [shape(("id", 1, INT), ("NOTE", 2, TEXT), incarnation=2)])
    assert numbers(found.target) == {"id": 1, "NOTE": 2}
    assert found.steps == (Rename("Note", "NOTE"),)


def test_a_table_made_again_with_another_key_stops_by_name() -> None:
    """Its old rows are gone, but the table is built for the old key."""
    with pytest.raises(ConfigurationError, match=r"its key was \(id\) and is \(note\) now"):
        evolve(target_of(FIRST), [shape(("id", 1, INT), ("note", 2, TEXT), key=("note",), incarnation=2)])


def test_rows_of_a_table_that_was_made_again_since_are_passed_over() -> None:
    """Their table is gone, and with it all that its shapes asked for."""
    old = shape(("id", 1, INT), ("note", 2, pa.list_(TEXT), "{a}"))
    new = shape(("id", 1, INT), ("note", 2, TEXT), incarnation=2)
    found = evolve(None, [old, new])
    assert found.fresh
    assert numbers(found.target) == {"id": 1, "note": 2}
    assert evolve(target_of(FIRST), [new]).fresh, "also when the range has nothing of the old one"
    assert not evolve(None, [new]).fresh
    assert not follow(FIRST).fresh
