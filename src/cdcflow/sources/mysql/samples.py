"""A digest of a few committed rows of a table: the first and the last by key."""

# ruff: noqa: S608 - names go through `quote_name`
from __future__ import annotations

from collections.abc import Sequence

from cdcflow.capture.ports.source import Sample
from cdcflow.model.table import TableId
from cdcflow.sources.engine.samples import both_ends, sample_of
from cdcflow.sources.mysql.binlog_status import snapshot
from cdcflow.sources.mysql.connection import Connection, query
from cdcflow.sources.mysql.sql import literal, quote_name


def sample(connection: Connection, table: TableId, key: Sequence[str]) -> Sample | None:
    """Return the digest of a few rows; None if the table no longer exists."""
    columns = query(
        connection,
        "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = {literal(table.schema)} AND TABLE_NAME = {literal(table.name)} "
        "ORDER BY ORDINAL_POSITION",
    )
    if not columns:
        return None
    # Values become hexadecimal digits, because bytes and texts in different character sets cannot be concatenated.
    values = ", ".join(f"COALESCE(HEX(CONCAT({quote_name(str(name))})), '-')" for name, _ in columns)
    row = f"SELECT SHA2(CONCAT_WS(' ', {values}), 256) FROM {quote_name(table.schema)}.{quote_name(table.name)}"
    with snapshot(connection):
        found = [query(connection, f"{row} {end}") for end in both_ends([quote_name(k) for k in key])]
    shape = ",".join(f"{name} {kind}" for name, kind in columns)
    return sample_of(shape, (digest for rows in found for (digest,) in rows))
