"""The properties of table formats that engines share: what tables can hold, and how a warehouse is recognized.

    tables.formats.delta      spark.formats.delta      tables.local.delta
    tables.formats.iceberg    spark.formats.iceberg    tables.local.iceberg

To add a format, add a module here with `RULES` and `is_in`, its line below, and a module in each engine that writes it.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from cdcflow.errors import ConfigurationError
from cdcflow.tables.formats import delta, iceberg
from cdcflow.tables.merge.format import Format
from cdcflow.tables.paths import Warehouse

_FORMATS: dict[str, ModuleType] = {"iceberg": iceberg, "delta": delta}
"""The formats in the order in which a warehouse is checked for them: an Iceberg warehouse may also contain an
unrelated Delta table."""

FORMATS: tuple[str, ...] = tuple(sorted(_FORMATS))


def rules_of(name: str) -> Format:
    """Return the rules of a format by its name.

    Raises:
        ConfigurationError: there is no such format.
    """
    if name not in _FORMATS:
        raise ConfigurationError(
            f"there is no table format {name}",
            remedy=f"set merge.format to one of: {', '.join(FORMATS)}",
            runbook="merge-session",
        )
    found: Format = _FORMATS[name].RULES
    return found


def tag_of(name: str, cut: int) -> str:
    """Return the tag of a version that `cut` is the first to show; "" if tables of this format have no tags."""
    return iceberg.tag(cut) if name == "iceberg" else ""


def format_in(warehouse: Path) -> str | None:
    """Return the format of the tables in a warehouse; `None` if no merge has begun there."""
    return next((name for name, format_ in _FORMATS.items() if format_.is_in(warehouse)), None)


def format_for(warehouse: Warehouse | Path | str, name: str | None) -> str:
    """Return the format in which a merge writes the tables of a warehouse. `name` `None`: the format of its tables, or
    Delta if it has none.

    A warehouse with a catalog has Iceberg tables; one without a catalog that is not a folder has Delta tables.

    Raises:
        ConfigurationError: the warehouse has tables of another format than `name`, or there is no such format.
    """
    wanted = None if name is None else rules_of(name).name
    place = Warehouse.of(warehouse)
    if place.catalog is not None:
        found: str | None = "iceberg"
    elif place.is_local:
        found = format_in(place.folder)
    elif wanted == "iceberg":
        raise ConfigurationError(
            f"merging into {place}: Iceberg tables outside of a folder need a catalog",
            remedy="set merge.catalog, such as {type: rest, uri: https://…}",
            runbook="merge-session",
        )
    else:
        found = "delta"
    if wanted is not None and found is not None and wanted != found:
        raise ConfigurationError(
            f"merging into {warehouse}: its tables are {found} tables, and merge.format says {name}",
            remedy=f"set merge.format to {found}, or merge into another warehouse",
            runbook="merge-session",
        )
    return wanted or found or "delta"
