"""The change log as a data source of Spark's, for batches and streams: `spark.read.format("cdcflow")`.

    options ─▶ planning process: manifests ─▶ range, shape, files ─▶ partitions
                                                                     │ names of files, and offsets in them
    executors ◀──────────────────────────────────────────────────────┘
       open the log's files where they lie ─▶ Arrow batches in the columns of the newest shape

Rows go from the files to Spark as Arrow columns; nothing but manifests passes through the planning process, and of a
feed the few columns that say whether it can be one. Every machine opens the log itself, by the same options: so it
needs the package cdcflow, sees the log under the same path or has the same settings file, and no secret is in a plan.

A segment that was compacted after it was planned is found again by its offsets, for a compacted segment has the same
rows under the same offsets.

A stream's offsets are offsets of the log at which sealed segments end, with the log's id. A batch is the rows behind
one up to the other, whenever it is asked for. Spark 4.1 does not tell a source where a query goes on when it asks how
far the next batch goes; but a query that was started again first asks for the partitions of nothing at that offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdcflow.changelog.alignment import sources
from cdcflow.changelog.extents import TRIES_MAX, Found
from cdcflow.changelog.feed import COMMIT_TIMESTAMP, feed_schema
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.moments import clock_of
from cdcflow.changelog.reader import row_groups
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.merge.types import name_sql
from cdcflow.model.table import COMMIT_TS, OFFSET, Table, TableId
from cdcflow.spark.arrow import ddl_of, for_spark
from cdcflow.warehouse.logranges import (
    FEED,
    LOG,
    Ends,
    Shaped,
    bounds_of,
    check_feed,
    files_between,
    parted,
    shaped,
    table_named,
    target_of,
)
from cdcflow.warehouse.segments import InputFile, SegmentGone

NAME = "cdcflow"

PARTITION_BYTES = 32 << 20
"""So much of Parquet files goes to one task, of small files several, of a large one a part."""

LOOK_PAUSE_S = 1.0
"""So long after a look that found nothing new the next one may come."""

OpenSettings = Callable[[str], Layout]
"""Where the sealed segments are of the log that a settings file names."""

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
    """What a query asks for. One of `log`, the log's folder, and `config`, a settings file, is there."""

    log: str | None
    config: str | None
    table: str
    kind: str = LOG
    truncates_as_rows: bool = False
    ends: Ends = field(default_factory=Ends)
    offsets_max: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """
        Raises:
            ConfigurationError: an option is unknown or has no such value, or the log or the table is not named.
        """
        found = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(found) - {*_ENDS, *_OTHERS}):
            raise _option(f"there is no option {', '.join(unknown)}", f"its options are {_SAID}")
        log, config = found.get("log", found.get("path")), found.get("config")
        if (log is None) == (config is None):
            raise _option(
                "the log is not named, or twice", "name its folder (option log) or a settings file (option config)"
            )
        place = str(log or config)
        if not place.startswith("/"):
            raise _option(
                f"the path {place} is relative, and Spark's processes may run in other folders",
                f"name the whole path, as str(Path({place!r}).absolute()) gives it",
            )
        if "table" not in found:
            raise _option("no table is named", "set the option table to a schema.table of the log")
        kind, truncates = found.get("shape", LOG), found.get("truncates", "stop")
        if kind not in (LOG, FEED):
            raise _option(f"there is no shape {kind}", "set the option shape to log or feed")
        if truncates not in ("stop", "row"):
            raise _option(f"truncates is {truncates}", "set the option truncates to stop or row")
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
class Planned:
    """A query: `first` to `last` (inclusive) are the offsets of a batch, or those that a stream finds when it begins.

    `lost`: the beginning that was asked for has expired. A stream that was there before does not need it any more.
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
        """The first offset, for who needs it.

        Raises:
            HistoryLost: it has expired.
        """
        if self.lost is not None:
            raise self.lost
        return self.first


@dataclass(frozen=True, slots=True)
class Piece:
    """What of a file is wanted: offsets from `first` to `last`, both inclusive."""

    file: InputFile
    first: int
    last: int


class Pieces(InputPartition):
    """What one task reads, in the order of the offsets."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(pieces))
        self.pieces = tuple(pieces)


class ChangeLogSource(DataSource):
    """See the module. `open_settings`: for the option `config` (see `cdcflow.spark.register`)."""

    open_settings: ClassVar[OpenSettings | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: Planned | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_ddl(self._planned().shown)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangeLogReader(self._planned(), self._open(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ChangeLogStream(self._planned(), self._open(), schema)

    def _planned(self) -> Planned:
        """Once: Spark keeps the source that said the schema, and asks it for readers."""
        if self._plan is None:
            options = Options.of(dict(self.options))
            self._plan = planned(self._open()(options), options)
        return self._plan

    def _open(self) -> Callable[[Options], Layout]:
        settings = type(self).open_settings

        def opened(options: Options) -> Layout:
            if options.log is not None:
                return Layout.of(options.log)
            if settings is None:
                raise _option(
                    "this session knows no settings files",
                    "register the source with cdcflow.spark.register(spark, cdcflow.wiring.sealed_layout_of)",
                )
            return settings(str(options.config))

        return opened


def planned(layout: Layout, options: Options) -> Planned:
    """What a query asks for, by the manifests as they are now.

    Raises:
        ConfigurationError, HistoryLost: it cannot be had; the message says why.
    """

    def plan() -> Planned:
        table = table_named(layout, options.table)
        lost = None
        try:
            first, last = bounds_of(layout, options.ends)
        except HistoryLost as error:
            lost = error
            first, last = bounds_of(layout, Ends())
        files = files_between(layout, table, first, last)
        shown = shaped(layout, table, files, options.kind, truncates_as_rows=options.truncates_as_rows)
        _check_names(shown.target)
        return Planned(options, layout.log_file().log_id, table, first, last, shown, lost)

    return again(plan)


def schema_ddl(shown: Shaped) -> str:
    """The columns of a query, as DDL."""
    return ", ".join(f"{name_sql(field.name)} {ddl_of(field.type)}" for field in columns_of(shown))


def columns_of(shown: Shaped) -> pa.Schema:
    """The same, as the log has them."""
    return feed_schema(shown.target) if shown.kind == FEED else shown.target.log_schema


@dataclass(frozen=True, slots=True)
class _Rows:
    """Reads pieces, on an executor."""

    plan: Planned
    open_log: Callable[[Options], Layout]
    schema: StructType

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Pieces):
            return
        layout = self.open_log(self.plan.options)
        schema = to_arrow_schema(self.schema, timestamp_utc=True)
        for piece in partition.pieces:
            for rows, shape in self._log_rows(layout, piece):
                yield from for_spark(self.plan.shown.rows(rows, shape), schema)

    def _log_rows(self, layout: Layout, piece: Piece) -> Iterator[tuple[pa.Table, Table]]:
        opened = [(piece, self._opened(layout, piece.file))]
        for _ in range(TRIES_MAX):
            if all(parquet is not None for _, parquet in opened):
                break
            # It was compacted: the segment that covers it has its rows.
            files = again(lambda: files_between(layout, self.plan.table, piece.first, piece.last))
            same = [file for file in files if file.shape == piece.file.shape]
            opened = [(Piece(file, piece.first, piece.last), self._opened(layout, file)) for file in same]
        for part, parquet in opened:
            if parquet is None:
                raise InvariantViolated(
                    f"reading {layout.name}: the segment with offset {part.first} is missing", runbook="log-damaged"
                )
            with parquet:
                for rows in row_groups(part.file.shape, parquet, part.first, part.last):
                    yield rows, part.file.shape

    def _opened(self, layout: Layout, file: InputFile) -> pq.ParquetFile | None:
        try:
            return pq.ParquetFile(layout.file(file.segment, file.file))
        except FileNotFoundError:
            return None

    def planned(self, layout: Layout, files: Sequence[InputFile], first: int, last: int) -> list[InputPartition]:
        """The tasks for a range of offsets.

        Raises:
            NotInFeed: the feed cannot say one of its rows.
        """
        check_feed(self.plan.shown, files, first, last, lambda file: str(layout.file(file.segment, file.file)))
        return packed(files, first, last)


class ChangeLogReader(DataSourceReader):
    """A batch. It says of no filter that it has seen to it: what it leaves out are files without such rows."""

    def __init__(self, plan: Planned, open_log: Callable[[Options], Layout], schema: StructType) -> None:
        _check_schema(plan, schema)
        self._rows = _Rows(plan, open_log, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        plan = self._rows.plan
        layout = self._rows.open_log(plan.options)

        def listed() -> list[InputPartition]:
            first, last = narrowed(plan.begin, plan.last, self._filters)
            files = files_between(layout, plan.table, first, last)
            kept = [file for file in files if may_have(file, plan.shown.target, self._filters)]
            return self._rows.planned(layout, kept, first, last)

        return again(listed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class ChangeLogStream(DataSourceStreamReader):
    """A stream: its offsets are `{"log": the log's id, "offset": of the last row that was read}`."""

    def __init__(self, plan: Planned, open_log: Callable[[Options], Layout], schema: StructType) -> None:
        _check_schema(plan, schema)
        ends = plan.options.ends
        if any(getattr(ends, f"to_{name}") is not None for name in ("offset", "cut", "position", "time")):
            raise _option("a stream has no end, and one is named", "leave out toOffset, toCut, toPosition and toTime")
        self._rows = _Rows(plan, open_log, schema)
        self._at: int | None = None
        self._looked_s = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(self._rows.plan.begin - 1)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        plan = self._rows.plan
        at = plan.begin - 1 if self._at is None else self._at
        layout = self._rows.open_log(plan.options)
        # Of a query without a trigger Spark asks a hundred times a second, and a look may be a request to a store.
        time.sleep(max(0.0, self._looked_s + LOOK_PAUSE_S - time.monotonic()))
        ends = [last for _, last in layout.segments_behind(at) if last > at]
        most = plan.options.offsets_max
        within = ends if most is None else ([last for last in ends if last <= at + most] or ends[:1])
        self._looked_s = 0.0 if within else time.monotonic()
        self._at = within[-1] if within else at
        return self._offset(self._at)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        plan = self._rows.plan
        layout = self._rows.open_log(plan.options)
        log_id = layout.log_file().log_id
        for known in (start["log"], end["log"]):
            if known != log_id:
                raise ConfigurationError(
                    f"streaming {plan.table} of {layout.name}: the checkpoint of this query is of another log ({known},"
                    f" this one is {log_id})",
                    remedy="name the log with which the query began, or begin anew with a new checkpoint",
                    runbook="other-log",
                )
        self._at = int(end["offset"])
        first, last = int(start["offset"]) + 1, int(end["offset"])

        def listed() -> list[InputPartition]:
            files = files_between(layout, plan.table, first, last)
            for file in files:
                _check_shape(plan, file, layout)
            return self._rows.planned(layout, files, first, last)

        return again(listed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"log": self._rows.plan.log_id, "offset": offset}


def packed(files: Sequence[InputFile], first: int, last: int) -> list[InputPartition]:
    """The files' rows from one offset to another as tasks of about the same size."""
    found: list[InputPartition] = []
    together: list[Piece] = []
    size = 0
    for file in files:
        slim = _slim(file)
        low, high = max(first, file.file.first_offset), min(last, file.file.last_offset)
        if file.file.bytes > PARTITION_BYTES:
            count = -(-file.file.bytes // PARTITION_BYTES)
            step = -(-(high - low + 1) // count)
            found += [Pieces([Piece(slim, at, min(high, at + step - 1))]) for at in range(low, high + 1, step)]
            continue
        if together and size + file.file.bytes > PARTITION_BYTES:
            found.append(Pieces(together))
            together, size = [], 0
        together.append(Piece(slim, low, high))
        size += file.file.bytes
    return [*found, *([Pieces(together)] if together else [])]


def narrowed(first: int, last: int, filters: Sequence[Filter]) -> tuple[int, int]:
    """A range of offsets as far as filters of `_offset` leave it."""
    for one in filters:
        if getattr(one, "attribute", None) != (OFFSET,):
            continue
        match one:
            case EqualTo(value=int(value)):
                first, last = max(first, value), min(last, value)
            case GreaterThan(value=int(value)):
                first = max(first, value + 1)
            case GreaterThanOrEqual(value=int(value)):
                first = max(first, value)
            case LessThan(value=int(value)):
                last = min(last, value - 1)
            case LessThanOrEqual(value=int(value)):
                last = min(last, value)
            case _:
                pass
    return first, last


def may_have(file: InputFile, target: Table, filters: Sequence[Filter]) -> bool:
    """Whether a file may have a row that all filters let through, as far as its manifest tells."""
    return all(_may_have(file, target, one) for one in filters)


def again(read: Callable[[], Found]) -> Found:
    """What is read of the manifests, anew where a segment was compacted meanwhile."""
    for _ in range(TRIES_MAX):
        try:
            return read()
        except (SegmentGone, FileNotFoundError):
            continue
    return read()


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _may_have(file: InputFile, target: Table, one: Filter) -> bool:
    name = getattr(one, "attribute", None)
    value = getattr(one, "value", None)
    if name in ((COMMIT_TS,), (COMMIT_TIMESTAMP,)) and isinstance(one, GreaterThan | GreaterThanOrEqual):
        # The clock of a segment's end is as late as all commit times up to there, or later.
        clock = file.segment.checkpoint.get("commit_clock")
        is_known = isinstance(value, datetime) and value.tzinfo is not None and isinstance(clock, int)
        return not (is_known and isinstance(clock, int) and clock < clock_of(value))  # type: ignore[arg-type]
    if not file.shape.key or file.file.key_min is None or file.file.key_max is None:
        return True
    own = dict(zip((c.name for c in target.columns), sources(file.shape, target), strict=True))
    column = own.get(name[0]) if isinstance(name, tuple) and len(name) == 1 else None
    if column is None or column.name != file.shape.key[0]:
        return True
    low, high = _key_bounds(file, column.type.arrow)
    if low is None or high is None:
        return True
    match one:
        case EqualTo():
            return not _is_alike(value, low) or low <= value <= high
        case In(value=values):
            return any(not _is_alike(each, low) or low <= each <= high for each in values)
        case GreaterThan() | GreaterThanOrEqual():
            return not _is_alike(value, low) or value <= high
        case LessThan() | LessThanOrEqual():
            return not _is_alike(value, low) or value >= low
        case _:
            return True


def _key_bounds(file: InputFile, arrow: pa.DataType) -> tuple[Any, Any]:
    """The bounds of the first key column: whole numbers and dates; None: of another kind."""
    texts = (str(file.file.key_min), str(file.file.key_max))
    if pa.types.is_integer(arrow):
        return int(texts[0]), int(texts[1])
    if pa.types.is_date(arrow):
        try:
            return date.fromisoformat(texts[0]), date.fromisoformat(texts[1])
        except ValueError:  # a year that Python's dates do not have
            return None, None
    return None, None


def _is_alike(value: object, bound: object) -> bool:
    return type(value) is type(bound)


def _check_schema(plan: Planned, schema: StructType) -> None:
    if schema.names != columns_of(plan.shown).names:
        raise _option("the query has a schema of its own", "leave out .schema(…), and select columns instead")


def _check_names(target: Table) -> None:
    names = [column.name.lower() for column in target.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"reading {target.id} with Spark: it has columns that differ only in the case of their names"
            f" ({', '.join(twice)}), which are the same to Spark",
            remedy="rename one of them at the source, and read from the offset behind on",
            runbook="table-not-followed",
        )


def _check_shape(plan: Planned, file: InputFile, layout: Layout) -> None:
    """See that a stream can show rows of a shape that came since it began."""
    shown = plan.shown
    if file.shape in shown.shapes:
        return
    if file.shape.incarnation != shown.target.incarnation and shown.kind == FEED:
        raise parted(
            plan.table,
            "the table was dropped and made again, and the log does not have the rows that went",
            file.file.first_offset - 1,
        )
    if target_of((*shown.shapes, file.shape)).log_schema.equals(shown.target.log_schema):
        return
    raise ConfigurationError(
        f"streaming {plan.table} of {layout.name}: from offset {file.file.first_offset} on its columns are others than"
        " when this query began",
        remedy="load the stream anew and start it with the same checkpoint: it goes on in the new columns",
        runbook="table-not-followed",
    )


def _slim(file: InputFile) -> InputFile:
    """The same without what no task needs of its segment: a checkpoint may be large."""
    segment = replace(file.segment, checkpoint={}, files=(), seams=())
    return replace(file, segment=segment, file=replace(file.file, table=None, key_runs=None))


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _option(f"{name} is {text}", f"set the option {name} to a whole number") from None


def _option(found: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f'reading a change log with format("{NAME}"): {found}', remedy=remedy, runbook="settings")


__all__ = ["NAME", "ChangeLogSource", "OpenSettings", "Options", "again", "packed", "planned", "schema_ddl"]
