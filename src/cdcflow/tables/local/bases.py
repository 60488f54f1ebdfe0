"""Rows that were loaded another way: a Delta table, or Parquet files, read as the columns of a current-state table.

Nothing is guessed: a column that is missing, or whose type is not exactly the table's, is refused, and a timestamp
without a time zone in its file is never taken for a point in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable as ForeignTable
from deltalake.exceptions import DeltaError, DeltaProtocolError

from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import place_in_store
from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local.arrow_types import type_of
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import FEATURES
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge.target import Target, TargetColumn
from cdcflow.tables.port import HandOver

PART_BYTES = 128 << 20
"""At most about this many bytes of a base's rows are in memory at a time."""

_INT96 = "INT96"
_READ = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")


@dataclass(frozen=True, slots=True)
class Base:
    """Rows in files. `said`: a description of the base for messages. `batches`: returns some columns of all rows.
    `moments`: columns of timestamps in UTC whose type in the files has no time zone, because Spark's old timestamp type
    has none."""

    said: str
    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    moments: frozenset[str] = frozenset()


def _in_files(said: str, files: ds.Dataset, moments: frozenset[str] = frozenset()) -> Base:
    """Return a base whose files Arrow reads without help."""
    return Base(said, files.schema, lambda columns: files.scanner(columns=list(columns)).to_batches(), moments)


def _in_marked_files(said: str, table: DeltaTable) -> Base:
    """Return the base for a Delta table with deletion vectors, or with other column names in its files."""
    return Base(
        said, table.schema, lambda columns: (batch for rows in table.parts(columns) for batch in rows.to_batches())
    )


Reach = Callable[[str], WarehouseFolder]
"""A function that opens the folder in a bucket that a URL names."""


def open_base(place: str, as_of: str | None, reach: Reach | None = None) -> Base:
    """Return the rows at a path, or at the URL of a folder in a bucket. `as_of`: a version of a Delta table, or a time.

    Raises:
        ConfigurationError: nothing can be read there, or not as of that version or time.
    """
    if place_in_store(place) is not None and reach is not None:
        return _base_in_a_store(place, reach, as_of)
    if "://" in place:
        raise _refusal(
            place,
            "only files of this machine and of buckets (s3://, gs://, abfss://) are read",
            "copy it to this machine, or mount it",
        )
    path = Path(place)
    if not path.exists():
        raise _refusal(place, "there is nothing of that name", "correct the path")
    if (path / "_delta_log").is_dir():
        return _delta(path, as_of)
    if as_of is not None:
        raise _refusal(place, "only a Delta table has versions, and this is not one", "leave --as-of out")
    if (path / "metadata").is_dir():
        raise _refusal(place, "Iceberg tables are not read", "write its rows as Parquet or as a Delta table")
    return _parquet(path)


def _base_in_a_store(place: str, reach: Reach, as_of: str | None) -> Base:
    folder = reach(place)
    if folder.folder("_delta_log").exists():
        return _stored_delta(place, DeltaTable(folder, None), as_of)
    if as_of is not None:
        raise _refusal(place, "only a Delta table has versions, and this is not one", "leave --as-of out")
    if folder.folder("metadata").exists():
        raise _refusal(place, "Iceberg tables are not read", "write its rows as Parquet or as a Delta table")
    if place.endswith(".parquet"):
        above, _, name = place.rpartition("/")
        return _stored_parquet(place, reach(above), [name])
    names = [entry.name for entry in folder.entries() if entry.bytes and entry.name.rpartition("/")[2][0] not in "_."]
    return _stored_parquet(place, folder, names)


def _stored_delta(place: str, table: DeltaTable, as_of: str | None) -> Base:
    snapshot = table.snapshot()
    if snapshot is None:
        raise _refusal(place, "the Delta table has no version", "correct the URL")
    wanted = snapshot.version if as_of is None else _moment(place, as_of)
    version = wanted if isinstance(wanted, int) else table.version_at(wanted.timestamp() * 1000)
    if version is None:
        raise _refusal(
            place, f"the Delta table has no version{_as_of(as_of)}", "see which versions its history still has"
        )
    return _base_with_vectors(place, f"version {version} of the Delta table at {place}", table, version)


def _stored_parquet(place: str, folder: WarehouseFolder, names: Sequence[str]) -> Base:
    wanted = "name a Parquet file, or a folder of them"
    if not names:
        raise _refusal(place, "it has no Parquet file", wanted)
    if any("=" in name for name in names):
        raise _refusal(place, "the names of its folders are values", "write it again without, or as a Delta table")
    try:
        files = [_open_stored(folder, name) for name in names]
    except (pa.ArrowException, FileNotFoundError) as error:
        raise _refusal(place, "it has files that are not Parquet", wanted) from error
    shapes = [file.schema_arrow for file in files]
    _check_alike(place, shapes)

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            yield from _open_stored(folder, name).iter_batches(columns=list(columns))

    return Base(f"the Parquet files at {place}", shapes[0], batches, _moments(files[0].metadata.schema))


def _open_stored(folder: WarehouseFolder, name: str) -> pq.ParquetFile:
    return pq.ParquetFile(folder.open(name).source, coerce_int96_timestamp_unit="us")


def _refusal(place: str, why: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"reading {place}: {why}", remedy=remedy, runbook="attach")


def _parquet(path: Path) -> Base:
    place = str(path)
    try:
        files = ds.dataset(place, format=ds.ParquetFileFormat(read_options=_READ), partitioning="hive")
        fragments = list(files.get_fragments())
        shapes = [fragment.physical_schema for fragment in fragments]
    except (pa.ArrowException, OSError) as error:
        raise _refusal(
            place, "it has files that are not Parquet", "name a Parquet file, or a folder of them"
        ) from error
    if not fragments:
        raise _refusal(place, "it has no Parquet file", "name a Parquet file, or a folder of them")
    _check_alike(place, shapes)
    return _in_files(f"the Parquet files at {place}", files, _moments(fragments[0].metadata.schema))


def _moments(schema: pq.ParquetSchema) -> frozenset[str]:
    """Return the columns with points in time in Spark's old timestamp type, which has no time zone."""
    columns = [schema.column(number) for number in range(len(schema))]
    return frozenset(column.path for column in columns if column.physical_type == _INT96)


def _check_alike(place: str, shapes: Sequence[pa.Schema]) -> None:
    others = {
        name for shape in shapes for name in {*shape.names, *shapes[0].names} if not _alike(shape, shapes[0], name)
    }
    if others:
        raise _refusal(
            place,
            f"its files do not have the same columns: {', '.join(sorted(others))}",
            "write it again with one schema, or as a Delta table",
        )


def _alike(shape: pa.Schema, other: pa.Schema, name: str) -> bool:
    found = [one.field(name).type if one.get_field_index(name) >= 0 else None for one in (shape, other)]
    return found[0] is not None and found[0] == found[1]


def _delta(path: Path, as_of: str | None) -> Base:
    place = str(path)
    try:
        table = ForeignTable(path)
        if as_of is not None:
            table.load_as_version(_moment(place, as_of))
        version = table.version()
    except DeltaError as error:
        raise _refusal(
            place, f"the Delta table cannot be read{_as_of(as_of)}", "see which versions its history still has"
        ) from error
    said = f"version {version} of the Delta table at {place}"
    try:
        return _in_files(said, table.to_pyarrow_dataset(parquet_read_options=_READ))
    except DeltaProtocolError:
        return _base_with_vectors(place, said, DeltaTable(path.resolve(), None), version)


def _as_of(as_of: str | None) -> str:
    return "" if as_of is None else f" as of {as_of}"


def _moment(place: str, as_of: str) -> int | datetime:
    if as_of.isdecimal():
        return int(as_of)
    try:
        found = datetime.fromisoformat(as_of)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise _refusal(
            place,
            f"{as_of} is neither a version nor a time with its time zone",
            "write --as-of 7, or --as-of 2026-01-31T12:00:00Z",
        )
    return found


def _base_with_vectors(place: str, said: str, table: DeltaTable, version: int) -> Base:
    remedy = "write its rows as Parquet, and attach that"
    try:
        table.as_of(version)
        if strange := sorted(table.features - FEATURES):
            raise _refusal(place, f"only Spark knows its features ({', '.join(strange)})", remedy)
        if table.is_partitioned:
            raise _refusal(place, "it is partitioned, and in a bucket or with rows that are marked as deleted", remedy)
        return _in_marked_files(said, table)
    except HandOver as reason:
        raise _refusal(place, str(reason), remedy) from reason
    except VersionGone as error:
        raise _refusal(
            place, f"the Delta table has no version {version}", "see which versions its history still has"
        ) from error


@dataclass(frozen=True, slots=True)
class Fitted:
    """A base that fits the columns of a table. `left_out`: columns that the table does not have."""

    base: Base
    types: pa.Schema
    left_out: tuple[str, ...]

    def parts(self, columns: Sequence[str], attempted: str) -> Iterator[pa.Table]:
        """Yield these columns of all rows in the table's types, part by part.

        Raises:
            ConfigurationError: a value does not fit the type.
        """
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in self.base.batches(columns):
            held.append(batch)
            size += batch.nbytes
            if size >= PART_BYTES:
                yield self._cast(held, columns, attempted)
                held, size = [], 0
        if held:
            yield self._cast(held, columns, attempted)

    def _cast(self, batches: Sequence[pa.RecordBatch], columns: Sequence[str], attempted: str) -> pa.Table:
        rows = pa.Table.from_batches(batches)
        return pa.table({name: self._column(rows.column(name), name, attempted) for name in columns})

    def _column(self, values: pa.ChunkedArray, name: str, attempted: str) -> pa.ChunkedArray:
        wanted = self.types.field(name).type
        try:
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            return values.cast(wanted)
        except pa.ArrowException:  # the error's text contains the value
            raise ConfigurationError(
                f"{attempted}: column {name} has values that {wanted} does not hold",
                remedy="load that column again with the type that the source has",
                runbook="attach",
            ) from None

    def check_keys(self, key: Sequence[str], attempted: str) -> int:
        """Check that each row has a unique key, and return the number of rows.

        Raises:
            ConfigurationError: keys occur twice, or are NULL.
        """
        session = DuckSession()
        try:
            rows, unnamed, twice = _count_rows_and_keys(session, self.parts(key, attempted), key, self.types)
        finally:
            session.close()
        if unnamed or twice:
            what = [f"{unnamed} rows have NULL in their key"] if unnamed else []
            what += [f"{twice} keys exist more than once"] if twice else []
            raise ConfigurationError(
                f"{attempted}: {' and '.join(what)} ({', '.join(key)}) in {self.base.said}",
                remedy="load the table again so that it has each row of the source once",
                runbook="attach",
            )
        return rows


def _count_rows_and_keys(
    session: DuckSession, parts: Iterator[pa.Table], key: Sequence[str], types: pa.Schema
) -> tuple[int, int, int]:
    """Return the number of rows, of rows with NULL in their key, and of keys that occur more than once."""
    # Under generated names: a key column called `n` would be taken for the count.
    names = [f"k{number}" for number in range(len(key))]
    schema = pa.schema([types.field(name).with_name(as_) for name, as_ in zip(key, names, strict=True)])
    kept = session.take("keys", schema.empty_table())
    for part in parts:
        given = session.view_of("part", part)
        session.rows(f"INSERT INTO {kept} SELECT * FROM {given}")  # noqa: S608  cdcflow's own
        session.drop([given])
    listed, is_null = ", ".join(names), " OR ".join(f"{name} IS NULL" for name in names)
    ((rows, unnamed, twice),) = session.rows(
        f"SELECT coalesce(sum(n), 0), coalesce(sum(CASE WHEN {is_null} THEN n ELSE 0 END), 0),"  # noqa: S608  cdcflow's own
        f" coalesce(sum(CASE WHEN n > 1 AND NOT ({is_null}) THEN 1 ELSE 0 END), 0)"
        f" FROM (SELECT {listed}, count(*) AS n FROM {kept} GROUP BY {listed})"
    )
    return int(rows), int(unnamed), int(twice)


def fit_base(base: Base, target: Target, attempted: str) -> Fitted:
    """Return a base fitted to the columns of a table.

    Raises:
        ConfigurationError: the base lacks columns, or has them with other types.
    """
    wrong = [why for column in target.columns if (why := _why_not(base, column)) is not None]
    if wrong:
        raise ConfigurationError(
            f"{attempted}: {base.said} does not have the table's columns: {'; '.join(wrong)}",
            remedy="load the table again with these columns and types",
            runbook="attach",
        )
    names = [column.name for column in target.columns]
    types = pa.schema([(column.name, type_of(column.type)) for column in target.columns])
    return Fitted(base, types, tuple(name for name in base.schema.names if name not in names))


def _why_not(base: Base, column: TargetColumn) -> str | None:
    count = len(base.schema.get_all_field_indices(column.name))
    if count != 1:
        return f"{column.name} is {'missing' if not count else 'present more than once'}"
    try:
        wanted = type_of(column.type)
    except HandOver:
        return f"{column.name} is {column.type} in the table, which only Spark writes"
    there = base.schema.field(column.name).type
    if is_exact(there, wanted, is_moment=column.name in base.moments):
        return None
    return f"{column.name} is {there}, and {column.type} in the table"


_INTEGERS = {
    pa.int8(): 3, pa.uint8(): 3, pa.int16(): 5, pa.uint16(): 5, pa.int32(): 10, pa.uint32(): 10,
    pa.int64(): 19, pa.uint64(): 20,
}  # fmt: skip
"""The number of decimal digits of each integer type."""


def is_exact(there: pa.DataType, wanted: pa.DataType, *, is_moment: bool = False) -> bool:
    """Return whether each value of the type `there` is exactly representable in `wanted`, or is refused when it is
    read. `is_moment`: a value is a timestamp in UTC, although its type has no zone."""

    def alike(is_such: Callable[[pa.DataType], bool]) -> bool:
        return bool(is_such(there) and is_such(wanted))

    if pa.types.is_dictionary(there):
        return is_exact(there.value_type, wanted, is_moment=is_moment)
    if pa.types.is_timestamp(there) and pa.types.is_timestamp(wanted):
        return (is_moment or there.tz is not None) == (wanted.tz is not None)
    if there == wanted or pa.types.is_null(there):
        return True
    if there in _INTEGERS and wanted in _INTEGERS:
        # Equal types were handled above.
        return bool(pa.types.is_signed_integer(wanted) and there.bit_width < wanted.bit_width)
    if pa.types.is_decimal(wanted) and (there in _INTEGERS or pa.types.is_decimal(there)):
        digits, scale = (_INTEGERS[there], 0) if there in _INTEGERS else (there.precision, there.scale)
        return bool(scale <= wanted.scale and digits - scale <= wanted.precision - wanted.scale)
    if _is_list(there) and _is_list(wanted):
        return is_exact(there.value_type, wanted.value_type)
    if alike(pa.types.is_floating):
        return bool(there.bit_width < wanted.bit_width)
    return alike(_is_text) or alike(_is_bytes)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_list_view(type_))
