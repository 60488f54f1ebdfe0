"""The numbers of tables in a log that moves: the same table keeps its number, and no other table ever gets it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.stored_state import PostgresState
from cdcflow.sources.postgres.table_numbers import TableNumbers

ITEMS = TableId("public", "items")
TEXT, INT = ColumnType("text", pa.string()), ColumnType("integer", pa.int32())
COLUMNS = (Column("id", 1, INT), Column("name", 2, TEXT, missing="new"))


def items(number: int, columns: tuple[Column, ...] = COLUMNS, key: tuple[str, ...] = ("id",)) -> Table:
    return Table(ITEMS, number, columns, key)


def moved(before: TableNumbers, oids: tuple[int, int], logged: Table | None, **shape: object) -> TableNumbers:
    """The numbers after a move, where the table had the first of these oids and has the second."""
    return before.after_move([items(oids[1], **shape)], {ITEMS: oids[0]}, {ITEMS: logged}.get)  # type: ignore[arg-type]


def test_oids_are_the_numbers_of_a_log_that_never_moved() -> None:
    numbers = TableNumbers()
    assert (numbers.number(16401), numbers.oid(16401)) == (16401, 16401)


def test_same_table_keeps_its_number_over_several_moves() -> None:
    """Its rows in the log stay rows of this table, wherever it is."""
    first = moved(TableNumbers(), (11, 22), items(11))
    second = moved(first, (22, 33), items(11))
    back = moved(second, (33, 11), items(11))
    assert [first.number(22), second.number(33), back.number(11)] == [11, 11, 11]
    assert [first.oid(11), second.oid(11), back.oid(11)] == [22, 33, 11]


@pytest.mark.parametrize(
    "shape",
    [
        {"columns": COLUMNS[:1]},
        {"columns": (COLUMNS[0], Column("name", 2, INT))},
        {"columns": (COLUMNS[0], Column("named", 2, TEXT))},
        {"columns": (COLUMNS[0], Column("name", 3, TEXT))},
        {"key": ("id", "name")},
        {"key": ()},
    ],
)
def test_table_with_other_columns_or_key_is_another(shape: dict[str, object]) -> None:
    """Also if it has the very oid: rows in the log would be shown in columns of the same numbers."""
    for oid in (11, 22):
        numbers = moved(TableNumbers(), (11, oid), items(11), **shape)
        assert numbers.number(oid) not in (11, 22)
        assert numbers.oid(numbers.number(oid)) == oid


def test_default_and_null_do_not_make_another_table() -> None:
    """A dump writes the default of an added column into the rows."""
    columns = (COLUMNS[0], Column("name", 2, TEXT, nullable=False))
    assert moved(TableNumbers(), (11, 22), items(11), columns=columns).number(22) == 11


def test_table_whose_rows_are_of_an_earlier_one_is_another() -> None:
    """It was recreated at the server before, and has had no row since."""
    assert moved(TableNumbers(), (12, 22), items(11)).number(22) == 22 + (1 << 32)


def test_table_without_rows_is_the_same_only_with_its_oid() -> None:
    """pg_upgrade keeps it; at any other server nothing shows that it is this table."""
    assert moved(TableNumbers(), (11, 11), None).number(11) == 11
    assert moved(TableNumbers(), (11, 22), None).number(22) != 11


def test_table_that_was_not_captured_is_new() -> None:
    numbers = TableNumbers().after_move([items(22)], {}, {ITEMS: items(11)}.get)
    assert numbers.number(22) == 22 + (1 << 32)


def test_later_table_never_gets_the_number_of_an_earlier_one() -> None:
    """Oids of the new server that are created later may equal numbers from before the move."""
    numbers = moved(TableNumbers(), (50_000, 22), items(50_000))
    assert numbers.number(22) == 50_000
    assert numbers.number(50_000) != 50_000
    again = moved(numbers, (50_000, 7), items(50_000 + (1 << 32)))
    assert again.number(7) == 50_000 + (1 << 32)
    assert again.number(50_000) not in (50_000, again.number(7))


def test_numbers_are_stored_with_the_state() -> None:
    """A start that did not know them would read every table again."""
    made = PostgresState(
        system_id="1", timeline=1, database="d", slot="s", publication="p", publication_state='{"tables": {}}'
    )
    assert "table_numbers" not in made.write()
    numbers = moved(TableNumbers(), (11, 22), items(11))
    found = PostgresState.read(replace(made, numbers=numbers).write())
    assert found is not None
    assert found.numbers == numbers
