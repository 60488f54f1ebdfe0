"""Choose the engine that merges a table: the first one, or the other one for tables that the first cannot merge."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.port import Engine

_log = structlog.get_logger()


class Engines:
    """The engine that is tried first, and the other engine for tables that the first cannot merge. The other one starts
    when it is first needed."""

    def __init__(self, first: Engine, other: Callable[[], Engine] | None = None, remedy: str | None = None) -> None:
        """`other` starts the other engine. `remedy`: what an operator can do if there is none."""
        self.first = first
        self._begin = other
        self._remedy = remedy
        self._begun: Engine | None = None
        self._failed: ConfigurationError | None = None
        self._lock = threading.Lock()

    @property
    def other_if_started(self) -> Engine | None:
        """The other engine, if it has been started."""
        return self._begun

    def other(self, table: TableId, reason: str) -> Engine:
        """Return the engine for a table that the first one cannot merge, and start it if necessary. `reason`: why the
        first one cannot.

        Raises:
            CannotFollow: there is no other engine, or it cannot start here. A start that failed is not tried again.
            SourceUnavailable: what the engine needs cannot be fetched at this time.
        """
        with self._lock:
            if self._begun is None:
                self._begun = self._start_other(table, reason)
            _log.info("table handed over", table=str(table), to=self._begun.name, reason=reason)
            return self._begun

    def _start_other(self, table: TableId, reason: str) -> Engine:
        if self._begin is not None and self._failed is None:
            try:
                return self._begin()
            except ConfigurationError as error:
                self._failed = error
        if self._failed is None:
            raise CannotFollow(f"merging into {table}: {reason}", remedy=self._remedy)
        raise CannotFollow(
            f"merging into {table}: {reason}, and the engine that would take it cannot start: {self._failed}",
            runbook=self._failed.runbook,
        ) from self._failed
