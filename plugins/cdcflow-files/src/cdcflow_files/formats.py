"""CSV, JSON lines and Parquet as columns. An error names column and row, never a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, json, parquet

from cdcflow.sources.polled import Changing, Unfit
from cdcflow_files.settings import Csv

BLOCK_BYTES = 16 << 20
"""The maximum length of a line of a JSON file, in bytes."""
_FORMATS = {".csv": "csv", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_COMPRESSED = (".gz", ".zst", ".bz2")
_PLACE = re.compile(r"column #(\d+)(?:: Row #(\d+))?")
_CONTINUES = "correct the file, or remove it: the table continues when the file has changed or is gone"


def format_of(name: str) -> str | None:
    """The format of a file by its name; None if it is not read."""
    plain = next((name.removesuffix(end) for end in _COMPRESSED if name.endswith(end)), name)
    found = _FORMATS.get(Path(plain).suffix)
    return None if found == "parquet" and plain != name else found


def ending_of(name: str) -> str:
    """The part of a file's name that determines how it is read: `.csv.gz`."""
    last = next((end for end in _COMPRESSED if name.endswith(end)), "")
    return Path(name.removesuffix(last)).suffix + last


def read_file(path: Path, types: Mapping[str, pa.DataType], dialect: Csv) -> pa.Table:
    """The content of a file. `types`: the types of the columns that are known.

    Raises:
        Unfit: the content is not of its format, or a value does not fit the type of its column.
        Changing: the file is empty, and nothing is known of its columns.
        OSError: it cannot be read.
    """
    if path.stat().st_size == 0:
        if not types:
            raise Changing
        return pa.schema(list(types.items())).empty_table()
    try:
        match format_of(path.name):
            case "csv":
                return _read_csv(path, types, dialect)
            case "json":
                return _read_json(path, types)
            case _:
                return parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise Unfit(_reason(str(error), path, dialect), _CONTINUES) from None


def _read_csv(path: Path, types: Mapping[str, pa.DataType], dialect: Csv) -> pa.Table:
    with pa.input_stream(str(path), compression="detect") as stream:
        return csv.read_csv(
            stream,
            # With threads, errors do not name the row.
            read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=dialect.delimiter, quote_char=dialect.quote, newlines_in_values=True
            ),
            # An empty value is NULL, "" is an empty text, and a text such as NA is a text.
            convert_options=csv.ConvertOptions(
                column_types=dict(types), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )


def _read_json(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    schema = pa.schema(list(types.items())) if types else None
    with pa.input_stream(str(path), compression="detect") as stream:
        return json.read_json(
            stream,
            read_options=json.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
        )


def _reason(message: str, path: Path, dialect: Csv) -> str:
    """What is wrong, in words. Arrow's own message contains the value."""
    place = _PLACE.search(message)
    if place is None:
        return f"its content is not {format_of(path.name)}, or a value does not fit the type of its column"
    with pa.input_stream(str(path), compression="detect") as stream:
        head = csv.open_csv(
            stream,
            parse_options=csv.ParseOptions(delimiter=dialect.delimiter, quote_char=dialect.quote),
            convert_options=csv.ConvertOptions(column_types={}),
        ).schema
    number = int(place[1])
    name = head.names[number] if number < len(head) else f"number {number + 1}"
    row = f" in row {place[2]}" if place[2] else ""
    return f"a value of column {name}{row} does not fit the column's type"
