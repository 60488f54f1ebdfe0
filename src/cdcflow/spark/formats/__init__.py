"""Table formats: what a merge asks of one (`port`), and a module for each that knows nothing of the others.

    job, cuts ──▶ port.TableFormat, port.FormatTable
                        ├── delta      Delta Lake
                        └── iceberg    Apache Iceberg

A third format is one more module with a `TableFormat`, and its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdcflow.errors import ConfigurationError
from cdcflow.spark.formats.delta import DeltaFormat
from cdcflow.spark.formats.iceberg import IcebergFormat
from cdcflow.spark.formats.port import TableFormat

FORMATS: dict[str, Callable[[], TableFormat]] = {"iceberg": IcebergFormat, "delta": DeltaFormat}
"""In the order in which a warehouse is looked at: a folder of somebody's Delta table may lie in any."""


def table_format(name: str) -> TableFormat:
    """The format of that name.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in FORMATS:
        raise ConfigurationError(
            f"there is no table format {name}", remedy=f"set merge.format to one of: {', '.join(sorted(FORMATS))}"
        )
    return FORMATS[name]()


def format_in(warehouse: Path) -> TableFormat | None:
    """The format of the tables in a warehouse; None where no merge has begun."""
    made = (make() for make in FORMATS.values())
    return next((format_ for format_ in made if format_.is_in(warehouse)), None)


def format_for(warehouse: Path, name: str | None) -> TableFormat:
    """The format to merge into a warehouse with; `name` None: that of its tables, and Delta where there are none.

    Raises:
        ConfigurationError: the warehouse has tables of another format than `name`, or there is no such format.
    """
    wanted = None if name is None else table_format(name)
    found = format_in(warehouse)
    if wanted is not None and found is not None and wanted.rules.name != found.rules.name:
        raise ConfigurationError(
            f"merging into {warehouse}: its tables are {found.rules.name} tables, and merge.format says {name}",
            remedy=f"set merge.format to {found.rules.name}, or merge into another warehouse",
        )
    return wanted or found or DeltaFormat()
