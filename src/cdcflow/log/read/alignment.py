"""Convert rows of an older shape of a table to the columns of a later one, as Arrow columns.

    shape 1   id#1  qty#2  note#3
    shape 3   id#1  amount#2  due#4        renamed: qty; dropped: note; added with a default: due

A column is identified by its number: a renamed column keeps it, a column that was dropped and added again gets a new
one. Numbers are meaningless across a table that was dropped and recreated, so there columns are matched by name, in any
letter case. A column that a shape does not have yet holds the value that the source gave to the rows that existed when
it was added (`Column.missing`), or NULL; a column that the target does not have is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import DELETE, TRUNCATE
from cdcflow.model.keytexts import values
from cdcflow.model.sqltypes import list_items
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Column, Identity, Table

Defaults = Mapping[str, str]
"""Values of columns in rows of shapes that lack them, by the column's name in the target: the texts of the source."""


@lru_cache(maxsize=1024)
def sources(shape: Table, target: Table) -> tuple[Column | None, ...]:
    """Return, for each column of the target, the corresponding column of the shape; `None` if the shape does not have
    it."""
    if shape.incarnation == target.incarnation:
        by_number = {c.number: c for c in shape.columns}
        return tuple(by_number.get(c.number) for c in target.columns)
    by_name = {c.name.lower(): c for c in shape.columns}
    return tuple(by_name.get(c.name.lower()) for c in target.columns)


def defaults_of(shapes: Sequence[Table], target: Table) -> dict[str, str]:
    """Return the values that rows of older shapes have in columns added later. `shapes`: oldest first. The first shape
    that has a column counts: a later one may no longer have the default."""
    found: dict[str, str] = {}
    for at, column in enumerate(target.columns):
        first = next((own for shape in shapes if (own := sources(shape, target)[at]) is not None), column)
        if first.missing is not None:
            found[column.name] = first.missing
    return found


def in_force(shapes: Sequence[Table]) -> Table:
    """Return the last of some shapes, given oldest first, with a replica identity that is wide enough for the old rows
    of all of them."""
    last = shapes[-1]
    is_full = any(shape.identity is Identity.FULL for shape in shapes)
    return Table(last.id, last.incarnation, last.columns, last.key, Identity.FULL if is_full else last.identity)


def aligned_columns(rows: pa.Table, shape: Table, target: Table, defaults: Defaults) -> list[pa.ChunkedArray]:
    """Return a table's own columns, converted to those of the target. If a change does not have the whole row (a
    truncate, and most deletes), columns added later are NULL.

    Raises:
        ConfigurationError: a value does not fit into its column's new type; the message does not contain the value.
    """
    found: list[pa.ChunkedArray] = []
    whole: pa.ChunkedArray | None = None
    for column, own in zip(target.columns, sources(shape, target), strict=True):
        if own is not None:
            found.append(_cast(rows.column(own.name), column, target))
            continue
        scalar = default_of(column, target, defaults)
        if not scalar.is_valid:
            found.append(pa.chunked_array([pa.nulls(rows.num_rows, column.type.arrow)]))
            continue
        if whole is None:
            whole = _is_whole(rows, shape)
        found.append(_as_chunked(pc.if_else(whole, scalar, pa.scalar(None, column.type.arrow))))
    return found


def align(rows: pa.Table, shape: Table, target: Table, defaults: Defaults) -> pa.Table:
    """Return rows of the log (`shape.log_schema`) in the target's columns (`target.log_schema`), with
    `_align_unchanged` and `_before` under the target's names."""
    if shape.columns == target.columns and shape.before_type == target.before_type:
        return rows
    return pa.Table.from_arrays(
        [
            *(rows.column(name) for name in (OFFSET, TRANSACTION, COMMIT_TS)),
            *aligned_columns(rows, shape, target, defaults),
            rows.column(OP),
            _align_unchanged(rows.column(UNCHANGED), shape, target),
            _before(rows.column(BEFORE), shape, target),
        ],
        schema=target.log_schema,
    )


def before_columns(before: pa.StructArray, shape: Table, target: Table, defaults: Defaults) -> list[pa.Array]:
    """Return the columns of whole old rows, none of them NULL and with all columns of the shape, converted to the
    target's."""
    found: list[pa.Array] = []
    for column, own in zip(target.columns, sources(shape, target), strict=True):
        if own is None:
            scalar = default_of(column, target, defaults)
            found.append(pa.repeat(scalar, len(before)))
        else:
            found.append(_cast(before.field(own.name), column, target))
    return found


def default_of(column: Column, target: Table, defaults: Defaults) -> pa.Scalar:
    """Return the value in a column for rows of shapes without it.

    Raises:
        ConfigurationError: its default is a constant that cannot be read from its text.
    """
    text, arrow = defaults.get(column.name), column.type.arrow
    if text is None:
        return pa.scalar(None, arrow)
    try:
        return _scalar_of(text, arrow)
    except ValueError:
        raise ConfigurationError(
            f"reading {target.id}: column {column.name} ({column.type.source}) was added with a default for the "
            "existing"
            " rows, and cdcflow cannot make a value of that type from its text",
            remedy="read from the offset of the first row that has the column",
            runbook="table-not-followed",
        ) from None


def _scalar_of(text: str, arrow: pa.DataType) -> pa.Scalar:
    """Return a constant as a value. Raises ValueError if its text has another form."""
    if pa.types.is_boolean(arrow):
        return pa.scalar(text in ("t", "true", "1"))
    if not pa.types.is_list(arrow):
        return values([text], arrow)[0]
    items = list_items(text)
    if items is None:
        raise ValueError("the constant is not a list of one dimension")
    found = [None if item is None else _scalar_of(item, arrow.value_type).as_py() for item in items]
    return pa.array([found], arrow)[0]


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _cast(array: pa.ChunkedArray | pa.Array, column: Column, target: Table) -> pa.ChunkedArray | pa.Array:
    if array.type == column.type.arrow:
        return array
    try:
        return array.cast(column.type.arrow)
    except pa.ArrowException:  # a new message: Arrow's own contains the value
        raise ConfigurationError(
            f"reading {target.id}: column {column.name} has values of type {array.type} that cannot be converted to its"
            f" later type {column.type.arrow}",
            remedy="read only the offsets before its type changed, or only those after it",
            runbook="table-not-followed",
        ) from None


def _is_whole(rows: pa.Table, shape: Table) -> pa.ChunkedArray | pa.Array:
    """Return, for each row, whether it has all columns of the table, not counting those that its change left
    unchanged."""
    ops = rows.column(OP)
    lives = pc.invert(pc.is_in(ops, pa.array([DELETE, TRUNCATE])))
    if shape.identity is not Identity.FULL:
        return lives
    return pc.or_(lives, pc.and_(pc.equal(ops, DELETE), pc.is_null(rows.column(UNCHANGED))))


def _as_chunked(array: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def as_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _align_unchanged(column: pa.Array | pa.ChunkedArray, shape: Table, target: Table) -> pa.Array:
    lists = as_array(column)
    if lists.null_count == len(lists):
        return lists
    named = {own.name: c.name for c, own in zip(target.columns, sources(shape, target), strict=True) if own is not None}
    renamed = [[named[name] for name in names if name in named] if names else None for names in _distinct(lists)]
    codes = _codes(lists)
    dictionary = pa.array([names or None for names in renamed], lists.type)
    return dictionary.take(codes)


def _distinct(lists: pa.ListArray) -> list[list[str] | None]:
    """Return each distinct set of names once. `_codes` has, for each row, the index of its set in this list."""
    return [
        None if text is None else text.split("\0")
        for text in _join_names(lists).dictionary_encode().dictionary.to_pylist()
    ]


def _codes(lists: pa.ListArray) -> pa.Array:
    return _join_names(lists).dictionary_encode().indices


def _join_names(lists: pa.ListArray) -> pa.Array:
    return pc.binary_join(lists, "\0")


def _before(column: pa.Array | pa.ChunkedArray, shape: Table, target: Table) -> pa.Array:
    structs = as_array(column)
    wanted = target.before_type
    if structs.null_count == len(structs):
        return pa.nulls(len(structs), wanted)
    own = {c.name: o for c, o in zip(target.columns, sources(shape, target), strict=True)}
    columns = {c.name: c for c in target.columns}
    there = {f.name for f in shape.before_type}
    parts = []
    for field in wanted:
        source = own[field.name]
        if source is None or source.name not in there:
            parts.append(pa.nulls(len(structs), field.type))
        else:
            parts.append(_cast(structs.field(source.name), columns[field.name], target))
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=structs.is_null())
