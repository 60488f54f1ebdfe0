"""Computed columns whose values a function of an installed package computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import pyarrow as pa

from cdcflow.capture.ports.plugin import TransformPlugin
from cdcflow.config.plugins import TRANSFORMS, load_plugin
from cdcflow.config.transforms import TransformSettings
from cdcflow.errors import CdcflowError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Table
from cdcflow.sources.privacy.transform_counts import counting
from cdcflow.sources.rows.compilation import NOT_FOLLOWED, ColumnFunction, UnknownColumn, Unusable
from cdcflow.sources.rows.kernels import InputRows
from cdcflow.sources.rows.row_rules import rows_misfit

Result = TypeVar("Result")


def text_of(settings: TransformSettings) -> str:
    """Return a text that differs if the function, or its settings, may give other results."""
    try:
        version = _plugin_of(settings).version
    except Unusable:
        version = "unknown"  # the first table reports the error
    return f"{settings.kind} {version} {settings.model_dump_json()}"


def compile_transform(
    settings: TransformSettings, table: Table, name: str, followed: Mapping[str, str] = NOT_FOLLOWED
) -> ColumnFunction:
    """Return the function for the columns of a table.

    `followed`: maps names in the settings, in lower case, to the present names of columns that were renamed; the
    function gets them under the earlier name.

    Raises:
        Unusable: a column does not exist, or the function refuses these columns.
    """
    plugin = _plugin_of(settings)
    known = {c.name.lower(): c.name for c in table.columns} | dict(followed)
    for column in settings.columns:
        if column.lower() not in known:
            meant = did_you_mean(column, known.values()).strip()
            raise UnknownColumn(f"uses the unknown column {column}{meant and f'; {meant}'}")
    names = {
        column if column.lower() in followed else known[column.lower()]: known[column.lower()]
        for column in settings.columns
    }
    schema = pa.schema([table.row_schema.field(one).with_name(shown) for shown, one in names.items()])
    arrow = _ask(settings, lambda: plugin.type_of(settings, schema))
    if not isinstance(arrow, pa.DataType):
        raise Unusable(f"is of kind {settings.kind}, whose type_of returned no type: report this to its authors")

    def evaluate(inputs: InputRows) -> pa.Array:
        columns = {shown: inputs.columns[one] for shown, one in names.items()}
        with counting(settings.kind, inputs.count):
            try:
                found = plugin.apply(settings, columns)
            except Exception as error:  # noqa: BLE001  a package's
                # The error's text is not shown, because it may contain a row's values.
                raise pa.ArrowInvalid(type(error).__name__) from None
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks()
            if not isinstance(found, pa.Array) or found.type != arrow or len(found) != inputs.count:
                raise rows_misfit(
                    table.id,
                    f"computed.{name}: kind {settings.kind} returned something else than {inputs.count} values of "
                    f"{arrow}",
                    "report this to the authors of its package",
                )
            return found

    return ColumnFunction(arrow, frozenset(names.values()), evaluate, can_fail=True)


def transform_columns(settings: TransformSettings, table: Table, followed: Mapping[str, str]) -> dict[str, str]:
    """Map the names of columns in the settings, in lower case, to the column that each means."""
    known = {c.name.lower(): c.name for c in table.columns} | dict(followed)
    return {name.lower(): known[name.lower()] for name in settings.columns if name.lower() in known}


def _plugin_of(settings: TransformSettings) -> TransformPlugin:
    try:
        return cast("TransformPlugin", load_plugin(TRANSFORMS, settings.kind))
    except LookupError as error:
        raise Unusable(f"has a kind that {error}") from error


def _ask(settings: TransformSettings, act: Callable[[], Result]) -> Result:
    """Call a function of a package. If it raises an error meant for users, its text is shown; of other errors, only the
    type."""
    try:
        return act()
    except CdcflowError as error:
        first, *_ = str(error).splitlines()
        raise Unusable(f"is of kind {settings.kind}: {first}") from None
    except Exception as error:  # noqa: BLE001  a package's
        raise Unusable(f"is of kind {settings.kind}, whose type_of raised {type(error).__name__}") from None
