"""The parts of a source without a log, as its author describes it: items, each with rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from cdcflow.capture.ports.findings import Finding
from cdcflow.model.table import TableId


class Unfit(Exception):
    """Raised when the rows of an item cannot be captured: its table stops at this item, and other tables continue.
    `remedy`: what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class Changing(Exception):
    """Raised when an item is being changed, or is gone: it is read at a later poll."""


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a table that is read as a whole: a file, a page, or the whole table. `name` is unique in its table.

    `print`: a text that differs whenever the content may have changed; the item is read only then. `key`: the names of
    the columns that identify a row; empty if none do. `read` returns the whole content as columns. It gets the types of
    the columns that are known already, and raises `Unfit` if the content does not fit, `Changing` if it is not
    complete now, and SourceUnavailable if nothing can be read now. `types`: types of columns that are not inferred.
    """

    table: TableId
    name: str
    print: str
    read: Callable[[Mapping[str, pa.DataType]], pa.Table]
    key: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


class Poller(Protocol):
    """The interface that the author of a source without a log implements. Used by one thread at a time."""

    @property
    def name(self) -> str:
        """The name of the polled system, for messages and as the database's name in the log."""
        ...

    def items(self) -> Iterable[Item]:
        """Return the items that exist now and are complete, in the order in which they are to be captured.

        An item that is no longer listed keeps its rows.

        Raises:
            SourceUnavailable: the items cannot be listed now.
        """
        ...

    def doctor(self) -> Iterable[Finding]:
        """Return findings about what prevents polling, and what can be done about it."""
        ...
