"""What a file is to cdcflow, wherever it is: which table it belongs to, whether it is read, and its item."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from cdcflow.ports import TableId
from cdcflow.sources.polled import Item, Unfit
from cdcflow_files.formats import format_of
from cdcflow_files.settings import SCHEMA, FilesSettings

_UNFINISHED = (".tmp", ".part", "~")


def is_hidden(name: str) -> bool:
    """Whether a file or folder with this name is ignored: programs write under such names, and rename afterwards."""
    return name.startswith((".", "_")) or name.endswith(_UNFINISHED)


def is_read(path: str) -> bool:
    """Whether cdcflow reads the file at this path in the folder."""
    return not any(map(is_hidden, path.split("/"))) and format_of(path) is not None


def table_name(path: str) -> str:
    """Return the table of a file, given its path in the folder: the name of the first folder in the path, or without
    a folder the file's name up to its first dot."""
    first, _, rest = path.partition("/")
    return first if rest else first.partition(".")[0]


def make_item(
    settings: FilesSettings,
    table: str,
    name: str,
    print_: str,
    read: Callable[[Mapping[str, pa.DataType]], pa.Table],
) -> Item:
    """Return the item of a file. The table's key and column types are taken from the settings."""
    full = f"{SCHEMA}.{table}"
    return Item(
        TableId(SCHEMA, table),
        name,
        print_,
        read,
        key=settings.keys.get(full, ()),
        types=settings.types_of(full),
    )


def check_size(settings: FilesSettings, size: int) -> None:
    """Raises:
    Unfit: the file is larger than the settings allow.
    """
    if size > settings.file_bytes_max:
        raise Unfit(
            f"it has {size} bytes, more than source.file_bytes_max",
            "write several smaller files, or set source.file_bytes_max to more, if memory holds it five times",
        )
