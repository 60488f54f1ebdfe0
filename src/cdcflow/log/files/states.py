"""States of a log: every table's rows at an offset, kept so that the log before it may expire.

    log      ░░░░░░░░░░ expired ░░░░░░░░░│──segment──segment──▶
    state                                │ at offset 4710: orders, products

    <log>/states/<offset>/
        state.json                        this module's `LogState`; written last
        <schema.table>.parquet            a table's rows, ascending by key, in the columns of the log: as if a backfill
                                          had read them there, but each with the offset, transaction and commit time of
                                          its last change

So a row that has not changed since is still known, and a table can be built from a state and the log after it. The
states of a log are in its directory on the machine that writes it; a store that holds the log has them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.layout import Layout, state_name, state_offset
from cdcflow.log.format.framing import other_version
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.table import Table, table_from_json

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table in a state: its file, how many rows it has, its shape at that offset (`Table.to_json()`), and the facts
    about its backfill that the log recorded (`capture.interleave.progress`)."""

    file: str
    rows: int
    bytes: int
    sha256: str
    shape: dict[str, Any]
    backfill: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return table_from_json(self.shape)

    @property
    def as_file(self) -> SegmentFile:
        """The table's file in the type that stores use."""
        return SegmentFile(self.file, self.rows, self.bytes, self.sha256)


@dataclass(frozen=True, slots=True)
class LogState:
    """The tables of a log (keyed by table name) at the end of `offset`. This is the end of cut `cut` of the log, the
    source's `position`, committed at `commit_clock` (microseconds since 1970 UTC)."""

    log_id: str
    offset: int
    cut: int
    position: str | None
    commit_clock: int
    tables: Mapping[str, StateTable] = field(default_factory=dict)
    version: int = STATE_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> LogState:
        """Read what `to_json` wrote.

        Raises:
            ConfigurationError: a newer cdcflow wrote it.
            InvariantViolated: it is damaged.
        """
        try:
            value = json.loads(text)
            if value["version"] != STATE_VERSION:
                raise other_version(name, f"version {value['version']}", value["version"], STATE_VERSION)
            tables = {name: StateTable(**entry) for name, entry in value["tables"].items()}
            return cls(**{**value, "tables": tables})
        except (ValueError, KeyError, TypeError) as error:
            raise state_damaged(name, type(error).__name__) from None


def folder(layout: Layout) -> Path:
    """Return the folder of a log's states."""
    return layout.root / "states"


def folder_of(layout: Layout, offset: int) -> Path:
    return folder(layout) / state_name(offset)


def state_offsets(layout: Layout) -> list[int]:
    """Return the offsets of the existing states, ascending."""
    if (away := layout.away) is not None:
        return list(away.states())
    try:
        names = [path.name for path in folder(layout).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(offset for name in names if (offset := state_offset(name)) is not None)


def open_state(layout: Layout, offset: int) -> LogState:
    """Return the state at an offset.

    Raises:
        FileNotFoundError: it was removed.
        InvariantViolated: it is damaged, or another log's.
    """
    path = folder_of(layout, offset) / "state.json"
    away = layout.away
    text = path.read_bytes() if away is None else away.state(offset)
    state = LogState.from_json(text, str(path))
    if state.log_id != layout.log_file().log_id or state.offset != offset:
        raise state_damaged(str(path), "it is another log's")
    return state


def groups(layout: Layout, state: LogState, name: str) -> Iterator[tuple[pq.ParquetFile, int]]:
    """Yield the row groups of a table of a state, each as the opened file and the group's number.

    Raises:
        InvariantViolated: the file is missing or damaged.
    """
    entry = state.tables[name]
    path = folder_of(layout, state.offset) / entry.file
    try:
        if (away := layout.away) is not None:
            path = away.state_file(state.offset, entry.as_file)
        if path.stat().st_size != entry.bytes:
            raise state_damaged(str(path), "its size differs")
        with pq.ParquetFile(path, memory_map=True) as parquet:
            yield from ((parquet, number) for number in range(parquet.num_row_groups))
    except (pa.ArrowException, FileNotFoundError) as error:
        raise state_damaged(str(path), type(error).__name__) from None


def rows(layout: Layout, state: LogState, name: str) -> pa.Table:
    """Return all rows of a table of a state (`Table.log_schema`)."""
    schema = state.tables[name].table.log_schema
    found = [parquet.read_row_group(number).cast(schema) for parquet, number in groups(layout, state, name)]
    return pa.concat_tables([schema.empty_table(), *found])


def rows_of_key(layout: Layout, state: LogState, name: str, wanted: Sequence[pa.Array]) -> pa.Table:
    """Return the rows of a table of a state that have a key, given as a one-value array per key column: at most one
    row."""
    table = state.tables[name].table
    found = [table.log_schema.empty_table()]
    for parquet, number in groups(layout, state, name):
        keys = parquet.read_row_group(number, columns=list(table.key), use_threads=False)
        hit: Any = True
        for column, value in zip(table.key, wanted, strict=True):
            hit = pc.and_(hit, pc.fill_null(pc.equal(keys.column(column), value[0]), False))
        if pc.any(hit).as_py():
            found.append(parquet.read_row_group(number).cast(table.log_schema).filter(hit))
    return pa.concat_tables(found)


def state_damaged(name: str, why: str) -> InvariantViolated:
    """Return the error for a state that cannot be read."""
    return InvariantViolated(
        f"reading the state {name}: it is damaged ({why})",
        remedy="restore the log's folder `states` from a copy; without one, run `cdcflow table backfill TABLE` to have"
        " the table's rows in the log again",
        runbook="log-damaged",
    )
