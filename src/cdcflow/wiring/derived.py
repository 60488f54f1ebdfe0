"""Reports on derived tables: how they are computed, and whether they equal the results of their queries."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cdcflow.config import Config
from cdcflow.errors import ConfigurationError
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse

if TYPE_CHECKING:
    from cdcflow.tables.job.derived_tables import DerivedReport


def report_derived(config: Config, *, compares: bool) -> tuple[DerivedReport, ...]:
    """Return a report of each configured derived table, as the latest cut has it. `compares`: also compare it with the
    result of its query.

    Raises:
        ConfigurationError: the warehouse is in a place that only Spark reaches, or a package is not installed.
    """
    from cdcflow import local
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job import derived_tables

    place = warehouse(config)
    if not is_merged_here(config, place):
        raise ConfigurationError(
            f"derived tables of {place}: only the local engine computes them, and it does not reach this warehouse",
            remedy="set merge.engine to local, with merge.objects for a bucket",
            runbook="derived-table",
        )
    with closing(local.local_engine(place, format_for(place, config.merge.format))) as engine:
        cut, queries = engine.cuts().newest(), policies(config).derived
        return derived_tables.report_derived(engine.deriver(), cut, queries, compares=compares)
