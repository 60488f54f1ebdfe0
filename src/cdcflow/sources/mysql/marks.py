"""Marks that come back as rows of a small table of ours (`slot`, `token`, `at`), read straight from row events.

Nothing of this table goes into the log, so its rows need no columns in Arrow: a slot and a token are all that counts.
Other slots' rows are those of another cdcflow at the same server.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.events import length_at
from cdcflow.sources.mysql.table_map import TableMap
from cdcflow.sources.mysql.wire import protocol_error

HEARTBEAT = "heartbeat"
"""A token that begins so only shows that the log moves."""

_VARCHAR, _TIMESTAMP = 15, 17


@dataclass(frozen=True, slots=True)
class Marks:
    """Where our marks are written: our `slot` in `table`. None as table: marks are not written (read-only)."""

    slot: str
    table: TableId | None


def check_columns(found: TableMap) -> None:
    """ConfigurationError: it is not the table that cdcflow makes."""
    if [c.type_code for c in found.columns] != [_VARCHAR, _VARCHAR, _TIMESTAMP]:
        raise ConfigurationError(
            f"table {found.id} is not one of cdcflow's: its columns are not slot, token and at",
            remedy=f"DROP TABLE `{found.id.schema}`.`{found.id.name}`; cdcflow makes it again",
        )


def tokens_of(found: TableMap, rows: bytes, images: list[bytes], slot: str) -> list[str]:
    """The tokens that one row event gives to this slot. `images` are the column bitmaps of each row's images: one for
    an insert, two for an update."""
    out: list[str] = []
    at = 0
    while at < len(rows):
        row: dict[int, str] = {}
        before = at
        for present in images:
            try:
                image, at = _image(found, rows, at, present)
            except IndexError:
                raise protocol_error("a row of the table of marks that ends early") from None
            row |= image
        if at == before:
            raise protocol_error("a row of the table of marks without columns")
        if row.get(0) == slot and 1 in row:
            out.append(row[1])
    return out


def _image(found: TableMap, rows: bytes, at: int, present: bytes) -> tuple[dict[int, str], int]:
    there = [i for i in range(len(found.columns)) if present[i >> 3] >> (i & 7) & 1]
    nulls = rows[at : at + (len(there) + 7) // 8]
    at += len(nulls)
    row: dict[int, str] = {}
    for nth, number in enumerate(there):
        if nulls[nth >> 3] >> (nth & 7) & 1:
            continue
        column = found.columns[number]
        if column.type_code == _TIMESTAMP:
            at += 4 + (column.metadata + 1) // 2
            continue
        if column.metadata < 256:
            size, at = rows[at], at + 1
        else:
            size, at = int.from_bytes(rows[at : at + 2], "little"), at + 2
        row[number] = rows[at : at + size].decode(errors="replace")
        at += size
    if at > len(rows):
        raise protocol_error("a row of the table of marks that ends early")
    return row, at


def bitmaps(event: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """The column bitmaps of a row event whose column count stands at `at`, and where its rows begin."""
    width, at = length_at(event, at)
    size = (width + 7) // 8
    if at + size * count > len(event):
        raise protocol_error("a row event that ends before its rows")
    return [event[at + i * size : at + (i + 1) * size] for i in range(count)], at + size * count
