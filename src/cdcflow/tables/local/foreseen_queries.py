"""Check whether queries and conditions of the settings fit tables as they will be, by running them over tables without
rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import duckdb
import pyarrow as pa

from cdcflow.tables.derived.queries import query_of, resolve_table, split_name, tables_of
from cdcflow.tables.job.derived_tables import derived_id
from cdcflow.tables.local.arrow_types import type_of
from cdcflow.tables.local.derived_functions import transform_rows
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.settings_sql import reason_of
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.port import HandOver
from cdcflow.tables.sql.conditions import parse_condition
from cdcflow.tables.sql.trees import SqlRefused

Columns = Mapping[str, str]
"""Columns of a table with their types, as Spark names them."""


def derived_columns(
    queries: Mapping[str, DerivedQuery], tables: Mapping[tuple[str, str], Columns]
) -> dict[str, dict[str, str] | str]:
    """Return, for each derived table, the columns that it has if its inputs are these tables (schema, name) with
    these columns. If its query fails, return the reason, as a text, instead of the columns."""
    found: dict[str, dict[str, str] | str] = {}
    shapes = {f"{schema}.{name}": _empty(columns) for (schema, name), columns in tables.items()}
    paths = {f"{schema}.{name}": (schema, name) for schema, name in tables}
    paths |= {name: (derived_id(name).schema, derived_id(name).name) for name in queries}
    waiting = dict(queries)
    with closing(QueryDatabase(None)) as db:
        while waiting:
            done = []
            for name, query in waiting.items():
                result = _columns(db, query, shapes, paths)
                if result is None:
                    continue
                done.append(name)
                if isinstance(result, str):
                    found[name] = result
                    continue
                shapes[name] = result
                found[name] = {field.name: str(field.type) for field in result.schema}
            for name in done:
                del waiting[name]
            if not done:
                found |= dict.fromkeys(waiting, "one of its inputs fails")
                break
    return found


def inputs_of_query(query: DerivedQuery, tables: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the tables that a query reads; empty if the query cannot be used."""
    with closing(QueryDatabase(None)) as db:
        try:
            read = [split_name(query.of)] if query.transform else tables_of(query_of(db.parse(query.sql)))
            return tuple(resolve_table(*one, tables) for one in read)
        except SqlRefused:
            return ()


def _columns(
    db: QueryDatabase, query: DerivedQuery, shapes: Mapping[str, pa.Table], paths: Mapping[str, tuple[str, str]]
) -> pa.Table | str | None:
    """Return the result of a query over tables without rows. If the query fails, return the reason; `None` if an
    input is not known yet."""
    names: list[str] = []
    try:
        if query.transform:
            shape = shapes.get(resolve_table(*split_name(query.of), paths))
            return None if shape is None else transform_rows(db, query, (), shape.schema)
        tree = query_of(db.parse(query.sql))
        inputs = {one: resolve_table(*one, paths) for one in tables_of(tree)}
        if any(name not in shapes for name in inputs.values()):
            return None
        names = [db.name(*one, db.give(shapes[name])) for one, name in inputs.items()]
        result = stored_types(db.arrow(db.render_query(tree)))
    except (SqlRefused, CannotFollow) as error:
        return str(error)
    except duckdb.Error as error:
        return reason_of(error)
    finally:
        db.forget(names)
    known = {name.lower() for name in result.column_names}
    if missing := [name for name in query.key if name.lower() not in known]:
        return f"its query gives no column {', '.join(missing)}, which its key has"
    return result


def condition_fault(condition: str, columns: Columns) -> str:
    """Return why a contract's condition cannot be used over these columns; "" if it can."""
    with closing(DuckSession()) as session:
        try:
            sql = parse_condition(session.parse, condition, list(columns)).sql
            session.over_own(_empty(columns), lambda name: f"SELECT CAST({sql} AS BOOLEAN) FROM {name}")  # noqa: S608  parsed
        except SqlRefused as error:
            return str(error)
        except duckdb.Error as error:
            return reason_of(error)
    return ""


def condition_columns(condition: str, columns: Columns) -> tuple[str, ...]:
    """Return the columns that a condition names; empty if the condition cannot be used."""
    with closing(DuckSession()) as session:
        try:
            return parse_condition(session.parse, condition, list(columns)).columns
        except SqlRefused:
            return ()


def _empty(columns: Columns) -> pa.Table:
    return pa.schema([pa.field(name, _arrow(text)) for name, text in columns.items()]).empty_table()


def _arrow(text: str) -> pa.DataType:
    try:
        return type_of(text)
    except HandOver:
        return pa.null()
