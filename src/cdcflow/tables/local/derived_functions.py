"""Compute rows of a derived table by a Python function of an installed package, from batches of an input's rows.

The function gets each row once, in a batch with others, and returns any number of rows for it, which depend on that row
alone. A returned row has the same values as the row that the function got in the columns that form a unit: the columns
of the key that the input has, too. So the rows of a unit follow from the input's rows with this unit, and deleting them
is exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, cast

import pyarrow as pa

from cdcflow.config.plugins import TRANSFORMS, installed_kinds
from cdcflow.model.suggestions import did_you_mean
from cdcflow.tables.derived.lineage import can_compare
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.sql.quotes import quote

BATCH_ROWS = 1 << 16
"""The maximum number of rows in a batch that a function gets."""

_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

TransformFunction = Callable[[pa.RecordBatch], pa.RecordBatch]


def load_function(query: DerivedQuery) -> TransformFunction:
    """Import the function of a derived table.

    Raises:
        CannotFollow: it cannot be imported; the message names what to install.
    """
    name = query.transform
    try:
        found = _import(name)
    except LookupError as error:
        raise CannotFollow(f"its transform {name} {error}") from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        reason = " ".join(str(error).split())[:200]
        raise CannotFollow(
            f"its transform {name} cannot be imported: {type(error).__name__}: {reason}",
            remedy="install its package where cdcflow runs: pip install PACKAGE",
        ) from error
    if not callable(found):
        raise CannotFollow(f"its transform {name} is not a function")
    return cast("TransformFunction", found)


def _import(name: str) -> Any:
    if _PLACE.fullmatch(name):
        module, _, function = name.partition(":")
        return getattr(import_module(module), function)
    declared = installed_kinds(TRANSFORMS)
    if name not in declared:
        near = did_you_mean(name, declared).strip()
        raise LookupError(f"is neither package.module:function nor an installed entry point{near and f'; {near}'}")
    if len(declared[name]) > 1:
        raise LookupError("is declared by several packages: uninstall one of them (pip uninstall PACKAGE)")
    return declared[name][0].load()


def transform_rows(db: QueryDatabase, query: DerivedQuery, parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows that the function computes from rows of its input, whose columns are `schema`.

    Raises:
        CannotFollow: the function fails, or returns something other than rows with the key.
    """
    function = load_function(query)
    found = [_call(function, query, pa.RecordBatch.from_pylist([], schema))]
    units = function_units(query, schema, found[0].schema)
    for part in parts:
        for batch in part.select(schema.names).cast(schema).to_batches(BATCH_ROWS):
            rows = _call(function, query, batch)
            if rows.schema != found[0].schema:
                raise CannotFollow(f"its transform {query.transform} returns batches with different columns or types")
            _check_units(db, query, units, batch, rows)
            found.append(rows)
    return pa.concat_tables(found)


def function_units(query: DerivedQuery, schema: pa.Schema, result: pa.Schema) -> list[str]:
    """Return the columns of the key that the function's input has, too, and whose values it returns unchanged.

    Raises:
        CannotFollow: the key has no such column.
    """
    found = [
        name
        for name in query.key
        if name in schema.names
        and name in result.names
        and result.field(name).type == schema.field(name).type
        and can_compare(str(result.field(name).type))
    ]
    if not found:
        raise CannotFollow(
            f"no column of its key ({', '.join(query.key)}) is a column of {query.of} that its transform returns with"
            " the same name and type",
            remedy="return such a column unchanged, and name it in key",
        )
    return found


def _call(function: TransformFunction, query: DerivedQuery, batch: pa.RecordBatch) -> pa.Table:
    try:
        found = function(batch)
    except Exception as error:  # noqa: BLE001  a package's
        # Not the error's text: it may contain a row's values.
        raise CannotFollow(f"its transform {query.transform} raised {type(error).__name__}") from None
    if isinstance(found, pa.RecordBatch):
        found = pa.Table.from_batches([found])
    if not isinstance(found, pa.Table):
        raise CannotFollow(f"its transform {query.transform} returned {type(found).__name__}, not a batch of rows")
    if missing := [name for name in query.key if name not in found.column_names]:
        raise CannotFollow(f"its transform {query.transform} returns no column {', '.join(missing)}, which its key has")
    return stored_types(found.replace_schema_metadata(None))


def _check_units(
    db: QueryDatabase, query: DerivedQuery, units: Sequence[str], batch: pa.RecordBatch, rows: pa.Table
) -> None:
    if not len(rows):
        return
    same = " AND ".join(f"n.{quote(name)} IS NOT DISTINCT FROM o.{quote(name)}" for name in units)
    given = db.give(pa.Table.from_batches([batch]).select(units))
    made = db.give(rows.select(units))
    others = db.count(f"SELECT count(*) FROM {made} n ANTI JOIN {given} o ON ({same})")  # noqa: S608  quoted
    db.forget()
    if others:
        raise CannotFollow(
            f"its transform {query.transform} returned {others} rows whose {', '.join(units)} no row has that it got",
            remedy=f"return {', '.join(units)} unchanged",
        )
