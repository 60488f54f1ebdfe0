"""What compares the configured source with its log and tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cdcflow.config import Config, KafkaLog
from cdcflow.errors import ConfigurationError
from cdcflow.ports import Comparable
from cdcflow.wiring.capturing import open_source
from cdcflow.wiring.logs import history_layout, log_layout, log_reader
from cdcflow.wiring.warehouses import policies, warehouse

if TYPE_CHECKING:
    from cdcflow.verify import Report, TableReport
    from cdcflow.verify.job import Pace
    from cdcflow.verify.port import Copy
    from cdcflow.verify.report import Against


def verified(
    config: Config,
    tables: Collection[str] = (),
    *,
    against: Collection[Against],
    differences_max: int,
    keys_max: int = 0,
    pace: Pace | None = None,
    watch: Callable[[TableReport], None] | None = None,
) -> Report:
    """Compare the configured source with its log, with its tables in the warehouse, or with both.

    Raises:
        ConfigurationError: there is no log; a package is missing; a name is no table's.
    """
    from cdcflow import local
    from cdcflow.verify.job import PACE, verify
    from cdcflow.warehouse.formats import format_for

    reader = log_reader(config)
    if not reader.exists():
        raise ConfigurationError(
            f"there is no change log at {reader.name}",
            remedy="start `cdcflow run` first, or correct `log` in the settings",
            runbook="no-log",
        )
    source = open_source(config)
    if not isinstance(source, Comparable):
        raise ConfigurationError("this source cannot be compared", runbook="verify")
    place = warehouse(config)
    chosen = format_for(place, config.merge.format)
    layout = history_layout(config.log) if isinstance(config.log, KafkaLog) else log_layout(config.log)
    with ExitStack() as stack:
        # First what may not be installed.
        comparer = stack.enter_context(local.comparer(chosen))
        engine = local.local_engine(place.folder, chosen)
        stack.callback(engine.close)
        comparison = source.comparison(reader.newest_checkpoint())
        stack.callback(comparison.close)
        copies: dict[Against, Copy] = {
            kind: local.copy_of(layout, place, engine, of_log=kind == "log", policies=policies(config))
            for kind in against
        }
        return verify(
            comparison,
            reader,
            copies,
            comparer,
            tables,
            differences_max=differences_max,
            keys_max=keys_max,
            pace=pace or PACE,
            watch=watch,
        )
