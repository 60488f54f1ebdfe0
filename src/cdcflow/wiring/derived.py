"""Reports on derived tables: how they are computed, and whether they equal the results of their queries."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from cdcflow.config import Config
from cdcflow.errors import ConfigurationError
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse

if TYPE_CHECKING:
    from cdcflow.tables.job.derived_tables import DerivedReport


def report_derived(config: Config, *, compares: bool) -> tuple[DerivedReport, ...]:
    """Return a report of each derived table of the warehouse, as `report_derived_of_several` does."""
    return report_derived_of_several({"": config}, compares=compares)


def report_derived_of_several(configs: Mapping[str, Config], *, compares: bool) -> tuple[DerivedReport, ...]:
    """Return a report of each derived table that settings have, and that the latest cut has.

    `configs`: all settings that merge into the warehouse, by the names of their files; a table whose query is in none
    of them is reported with that reason. `compares`: also compare each table with the result of its query.

    Raises:
        ConfigurationError: the warehouse is in a place that only Spark reaches, or a package is not installed; or the
            settings name different warehouses, or have different queries for one table.
    """
    from cdcflow import local
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job import derived_tables
    from cdcflow.tables.job.several_logs import derived_queries

    queries = derived_queries({name: policies(config) for name, config in configs.items()})
    first, config = next(iter(configs.items()))
    place = warehouse(config)
    if others := [name for name, one in configs.items() if warehouse(one) != place]:
        raise ConfigurationError(
            f"derived tables of {place}: {', '.join(others)} and {first} have different warehouses",
            remedy="name only settings files with the same merge.warehouse",
            runbook="settings",
        )
    if not is_merged_here(config, place):
        raise ConfigurationError(
            f"derived tables of {place}: only the local engine computes them, and it does not reach this warehouse",
            remedy="set merge.engine to local, with merge.objects for a bucket",
            runbook="derived-table",
        )
    with closing(local.local_engine(place, format_for(place, config.merge.format))) as engine:
        return derived_tables.report_derived(engine.deriver(), engine.cuts().newest(), queries, compares=compares)
