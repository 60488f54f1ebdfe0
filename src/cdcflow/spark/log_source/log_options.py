"""The options of a query of the change log, and the plan that they resolve to with the current manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.extents import TRIES_MAX, Found
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.feed import feed_schema
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import Table, TableId
from cdcflow.spark.runtime.arrow import ddl_of
from cdcflow.tables.job.log_ranges import (
    FEED,
    LOG,
    Ends,
    Shaped,
    bounds_of,
    files_between,
    in_latest_shape,
    table_named,
)
from cdcflow.tables.segments import SegmentGone

NAME = "cdcflow"
"""The name of the Spark data source."""

_ENDS = {
    "fromoffset": "from_offset",
    "fromcut": "from_cut",
    "fromposition": "from_position",
    "fromtime": "from_time",
    "tooffset": "to_offset",
    "tocut": "to_cut",
    "toposition": "to_position",
    "totime": "to_time",
}
_NUMBERS = ("from_offset", "from_cut", "to_offset", "to_cut")
_OTHERS = ("log", "path", "config", "table", "shape", "truncates", "maxoffsetspertrigger")
_SAID = (
    "log or config, table, shape, truncates, fromOffset, fromCut, fromPosition, fromTime, toOffset, toCut, toPosition,"
    " toTime, maxOffsetsPerTrigger"
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a query. Either `log`, the log's folder, or `config`, a settings file, is set."""

    log: str | None
    config: str | None
    table: str
    kind: str = LOG
    truncates_as_rows: bool = False
    ends: Ends = field(default_factory=Ends)
    offsets_max: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Parse the options.

        Raises:
            ConfigurationError: an option is unknown or has an invalid value, or the log or the table is not named.
        """
        found = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(found) - {*_ENDS, *_OTHERS}):
            raise option_error(f"there is no option {', '.join(unknown)}", f"its options are {_SAID}")
        log, config = found.get("log", found.get("path")), found.get("config")
        if (log is None) == (config is None):
            raise option_error(
                "the log is not named, or twice", "name its folder (option log) or a settings file (option config)"
            )
        place = str(log or config)
        if not place.startswith("/"):
            raise option_error(
                f"the path {place} is relative, and Spark's processes may run in other folders",
                f"name the whole path, as str(Path({place!r}).absolute()) gives it",
            )
        if "table" not in found:
            raise option_error("no table is named", "set the option table to a schema.table of the log")
        kind, truncates = found.get("shape", LOG), found.get("truncates", "stop")
        if kind not in (LOG, FEED):
            raise option_error(f"there is no shape {kind}", "set the option shape to log or feed")
        if truncates not in ("stop", "row"):
            raise option_error(f"truncates is {truncates}", "set the option truncates to stop or row")
        most = found.get("maxoffsetspertrigger")
        ends = {
            end: _number(name, found[name]) if end in _NUMBERS else found[name]
            for name, end in _ENDS.items()
            if name in found
        }
        return cls(
            log,
            config,
            found["table"],
            kind,
            truncates == "row",
            Ends(**ends),  # type: ignore[arg-type]  # numbers and texts, by field
            None if most is None else max(1, _number("maxOffsetsPerTrigger", most)),
        )


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A resolved query. `first` to `last` (inclusive) are the offsets of a batch; for a stream, those at its beginning.

    `lost`: the error if the requested beginning has expired. A stream with a checkpoint no longer needs that beginning.
    """

    options: Options
    log_id: str
    table: TableId
    first: int
    last: int
    shown: Shaped
    lost: HistoryLost | None = None

    @property
    def begin(self) -> int:
        """The first offset, for a query that needs it.

        Raises:
            HistoryLost: it has expired.
        """
        if self.lost is not None:
            raise self.lost
        return self.first


def plan_query(layout: Layout, options: Options) -> PlannedQuery:
    """Resolve the options of a query with the current manifests.

    Raises:
        ConfigurationError, HistoryLost: the rows are not available; the message is the reason.
    """

    def plan() -> PlannedQuery:
        table = table_named(layout, options.table)
        lost = None
        try:
            first, last = bounds_of(layout, options.ends)
        except HistoryLost as error:
            lost = error
            first, last = bounds_of(layout, Ends())
        files = files_between(layout, table, first, last)
        shown = in_latest_shape(layout, table, files, options.kind, truncates_as_rows=options.truncates_as_rows)
        _check_names(shown.target)
        return PlannedQuery(options, layout.log_file().log_id, table, first, last, shown, lost)

    return again(plan)


def schema_ddl(shown: Shaped) -> str:
    """Return the columns of a query, as DDL."""
    return ", ".join(f"{name_sql(field.name)} {ddl_of(field.type)}" for field in columns_of(shown))


def columns_of(shown: Shaped) -> pa.Schema:
    """Return the columns of a query, in the log's types."""
    return feed_schema(shown.target) if shown.kind == FEED else shown.target.log_schema


def again(read: Callable[[], Found]) -> Found:
    """Return the result of reading manifests; the reading is repeated if a segment was compacted in the meantime."""
    for _ in range(TRIES_MAX):
        try:
            return read()
        except (SegmentGone, FileNotFoundError):
            continue
    return read()


def option_error(found: str, remedy: str) -> ConfigurationError:
    """Return the error for an option. `found` and `remedy`: its parts, as in every error."""
    return ConfigurationError(f'reading a change log with format("{NAME}"): {found}', remedy=remedy, runbook="settings")


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_names(target: Table) -> None:
    names = [column.name.lower() for column in target.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"reading {target.id} with Spark: it has columns that differ only in the case of their names"
            f" ({', '.join(twice)}), which are the same to Spark",
            remedy="rename one of them at the source, and read from the next offset",
            runbook="table-not-followed",
        )


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise option_error(f"{name} is {text}", f"set the option {name} to a whole number") from None
