"""What a merge asks of a table format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cdcflow.merge.evolution import FormatColumn
from cdcflow.merge.format import Format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITTED = "cdcflow"
"""What the metadata of our commits stands under."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's newest version. `id` is the table's own: another table at the same path has another one.

    `version` grows with every change of rows. `transactions`: the newest version that each writer recorded with its
    data. `is_empty`: it has no rows; False also where that is not known.
    """

    id: str
    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    columns: tuple[FormatColumn, ...]
    is_empty: bool = False


class FormatTable(Protocol):
    """A table, which may not be there yet. It belongs to one Spark session, and to one thread at a time."""

    @property
    def sql(self) -> str:
        """How SQL names it."""

    @property
    def location(self) -> str | None:
        """Where it is to lie; None: its name says so."""

    def snapshot(self) -> Snapshot | None:
        """Its newest version; None where there is no table."""

    def commit(self, statement: str, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        """Run a statement that changes the table, in one commit that carries `metadata`. With `app` also the
        transaction (app, version): of one that the table has already, or had, nothing is done."""

    def newest_commit(self) -> Mapping[str, Any] | None:
        """The metadata of the newest commit; None where it is not ours, or cannot be told quickly."""

    def edits_since(self, version: int) -> list[str]:
        """What someone else did to the rows after `version`: `operation@version`, newest first."""

    def pin(self, version: int, cut: int) -> None:
        """Keep a version for as long as its cut is kept, where the format does not by itself."""

    def lost(self, version: int) -> str | None:
        """Why a version, older than the newest, cannot be read any more; None: it can."""

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """What `Snapshot.transactions` was at a version that is there."""

    def at(self, version: int) -> DataFrame:
        """The rows of a version."""


class TableFormat(Protocol):
    """A format: its rules, what a session needs for it, and its tables."""

    @property
    def rules(self) -> Format: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Of a Spark session that is to write such tables."""

    def table(self, spark: SparkSession, warehouse: Path, path: Sequence[str]) -> FormatTable:
        """The table at a path (schema, name) of a warehouse; of our own tables the path is one name."""

    def is_in(self, warehouse: Path) -> bool:
        """Whether merges into this warehouse have begun in this format."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a statement failed because somebody else committed to the table meanwhile: nothing of it was done,
        and it may be said again."""
