"""Rebuilds tables from the log alone: from its beginning, or from its state and the changes since."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.config import Config
from cdcflow.errors import ConfigurationError
from cdcflow.log.files import states
from cdcflow.log.files.layout import Layout
from cdcflow.log.read import upto
from cdcflow.wiring.logs import existing_log, sealed_layout
from cdcflow.wiring.warehouses import engines, policies, warehouse

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeProgress, MergeReport


def rebuild_tables(config: Config, into: str | None, watch: Callable[[MergeProgress], None]) -> MergeReport:
    """Merge the whole log into an empty warehouse (`into`; None: the configured one). Queries neither the source nor a
    daemon.

    Raises:
        ConfigurationError: there is no log; the warehouse has tables; or a table's mode requires changes that have
            expired.
    """
    from cdcflow.tables.job.job import merge

    chosen = config if into is None else _into(config, into)
    existing_log(chosen, "correct `log` in the settings")
    engine, place = engines(chosen), warehouse(chosen)
    if engine.first.cuts().newest() is not None:
        raise ConfigurationError(
            f"rebuilding the tables of {place}: it already has tables",
            remedy="name a new warehouse with --into, or move that one away",
            runbook="warehouse-not-empty",
        )
    with _whole(sealed_layout(chosen)) as (layout, state):
        if state is not None:
            _check_modes(chosen, state)
        return merge(engine, layout, place, watch=watch, policies=policies(chosen))


@contextmanager
def _whole(layout: Layout) -> Iterator[tuple[Layout, states.LogState | None]]:
    """Yield the log as if nothing had expired, as far as its state makes that possible, and that state."""
    begins = layout.log_file().first_offset
    if begins - 1 not in states.state_offsets(layout):
        yield layout, None
        return
    state = states.open_state(layout, begins - 1)
    above = None if layout.store is None else layout.store.room
    with tempfile.TemporaryDirectory(prefix="cdcflow-rebuild-", dir=above) as room:
        yield upto.behind(layout, state, Path(room) / "log"), state


def _check_modes(config: Config, state: states.LogState) -> None:
    rules = policies(config)
    if keeping := [name for name in sorted(state.tables) if rules.of(name).mode in ("history", "append")]:
        raise ConfigurationError(
            f"rebuilding tables from a log that begins with a state (offset {state.offset}): {', '.join(keeping)} have"
            " a mode that keeps changes, and those before the state have expired",
            remedy="give them mode current for this (merge.tables.each)",
            runbook="log-expired",
        )


def _into(config: Config, into: str) -> Config:
    place = into if "://" in into else Path(into)
    return config.model_copy(update={"merge": config.merge.model_copy(update={"warehouse": place})})
