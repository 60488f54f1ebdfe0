"""Tables whose names, columns, defaults, labels and values are texts that some program on the way could expand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.model.table import Column, Table
from cdcflow.model.types import ColumnType

KEY = "${env:PATH}"
PRODUCT = 7 * 191_919_191
TEXTS = (
    KEY,
    "${env.PATH}",
    "$PATH `printenv PATH` $(printenv PATH)",
    "{{7*191919191}} #{7*191919191} <%= 7*191919191 %>",
    "%(x)s %(PATH)s %PATH% %s",
    "{0} {namespace} {}",
    ":name ? @PATH",
    "${jndi:ldap://127.0.0.1:1/${env:PATH}}",
    "' \" \\ ; -- /* */",
)
NAMES = ("${env:PATH} {{7*191919191}} %(x)s", "$(printenv PATH) {namespace} {0} :name ? ~ ' \" \\")
"""Of tables and their schemas."""

EXPANDED = (os.environ["PATH"].encode(), str(PRODUCT).encode())
"""What is nowhere, unless something was expanded."""

Rows = dict[str, dict[str, Any]]


def hostile_columns(name: str, schema: str = "shop") -> Table:
    columns: dict[str, Any] = dict.fromkeys(TEXTS, "string")
    return make_table(name, schema=schema, key=(KEY,), **columns)


def with_defaults(table: Table) -> Table:
    """The table with more columns: their defaults and labels are those texts, too."""
    added = (
        Column(f"added {n} {text}", 100 + n, ColumnType(f"enum('{text}')", pa.string()), missing=text)
        for n, text in enumerate(TEXTS)
    )
    return replace(table, columns=(*table.columns, *added))


def write_rows(log: HandLog, tables: list[Table]) -> None:
    """Two rows for each table; one of them has the texts as values."""
    value: Mapping[str, str] = {text: text for text in TEXTS}
    for table in tables:
        log.state(table)
    log.segment([(table, "c", {**value, KEY: key}) for table in tables for key in (KEY, "b")])


def write_defaults(log: HandLog, tables: list[Table]) -> Rows:
    """Columns with defaults are added, and one row changes. Returns the rows of each table by their keys."""
    wide = [with_defaults(table) for table in tables]
    new = {column.name: column.missing for column in wide[0].columns[len(TEXTS) :]}
    value: dict[str, Any] = {text: text for text in TEXTS}
    changed = {**value, **new, TEXTS[1]: f"changed {KEY}"}
    log.segment([(table, "u", changed) for table in wide])
    return {KEY: changed, "b": {**value, **new, KEY: "b"}}


def rows_by_key(rows: list[dict[str, Any]]) -> Rows:
    """Rows without cdcflow's columns."""
    return {row[KEY]: {n: v for n, v in row.items() if n not in ("_offset", "_missing")} for row in rows}
