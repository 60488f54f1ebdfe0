"""The declaration of a package that brings a kind of target, and the interface that its target implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.capture.ports.findings import Finding
from cdcflow.config.targets import TargetSettings
from cdcflow.model.table import Table, TableId


class Overtaken(Exception):
    """The error when a table of the target is not at the place at which a change begins: another process has changed
    it, or an earlier attempt succeeded after all. Nothing was applied."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """The next state of one table, relative to the one that the target has.

    `rows` are whole rows (`table.row_schema`): each replaces the row with its key, or is new. `deleted` has the key
    columns of rows that are gone. No key is in both, or twice. `is_whole`: `rows` is the whole table, with these
    columns and this key; it replaces everything that the target has of it, also the columns.

    `after`: the place that the target must have stored for the table; None if it must not have one. `place`: the one
    to store.
    """

    table: Table
    rows: pa.Table
    deleted: pa.Table
    is_whole: bool
    after: str | None
    place: str


class TargetTables(Protocol):
    """The tables of an open target. Used by one thread; other processes may use the same target."""

    def places(self) -> Mapping[TableId, str]:
        """Return the place of each table, as `apply` stored it. A place is a text that only cdcflow interprets.

        Raises:
            SinkUnavailable: the target does not answer; it is tried again.
        """
        ...

    def apply(self, change: TableChange) -> None:
        """Apply a change and store its place: both, durably, or nothing.

        Raises:
            Overtaken: the stored place is not `change.after`; nothing was applied.
            SinkUnavailable: the target does not answer. Whether the change was applied may be unknown: cdcflow
                reads the places before it continues.
            ConfigurationError: the target refuses this table, which stops with the error's text; the others continue.
        """
        ...

    def close(self) -> None:
        """Release the resources of the target. This stores nothing."""
        ...


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The rows that a target has of a table, and the place that is stored with them: both from one snapshot."""

    place: str
    rows: pa.Table


@runtime_checkable
class ReadableTarget(TargetTables, Protocol):
    """A target whose rows can be read: `cdcflow verify --targets` compares it. Optional."""

    def read(self, table: Table) -> TargetRows:
        """Return the rows that the target has of this table, which has a place there.

        Columns have their names in `table`. They have the types of `table.row_schema`, or types that Arrow casts to
        these without a loss (texts of dates and of decimal numbers). A column that the target cannot return like this
        is omitted.

        Raises:
            SinkUnavailable: the target does not answer.
        """
        ...


def _only_kind(settings: Any) -> str:
    return f"{settings.kind}"


def _no_findings(settings: Any) -> Iterable[Finding]:
    return ()


@dataclass(frozen=True, slots=True)
class TargetPlugin:
    """A kind of target, which an entry point of the group `cdcflow.targets` names.

    `ports`, `settings` and `address`: as of a `SourcePlugin`; `settings` is the model of an element of `targets`.
    `open` gets these settings and returns the target's tables. `doctor` returns problems of the settings or the target;
    it changes nothing.
    """

    ports: int
    settings: type[TargetSettings]
    open: Callable[[Any], TargetTables]
    address: Callable[[Any], str] = _only_kind
    doctor: Callable[[Any], Iterable[Finding]] = _no_findings
