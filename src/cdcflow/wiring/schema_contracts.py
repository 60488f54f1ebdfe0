"""Contracts that the source's schemas break: known as soon as the log has a schema, before any row is merged."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.config import Config
from cdcflow.model.table import Table, TableId
from cdcflow.wiring.logs import log_reader
from cdcflow.wiring.warehouses import policies


def schema_breaks(config: Config) -> dict[str, str]:
    """Return which captured tables' schemas break the types that their contracts promise, or lack a promised column:
    the reason, by table. Rows are not read, and the capture continues in any case: the next merge stops such a table.

    A table whose schemas no table of the warehouse can have is not listed; the merge has another reason for it.
    """
    if not config.contracts:
        return {}
    reader = log_reader(config)
    if not reader.exists():
        return {}
    shapes = {table: list(versions.values()) for table, versions in reader.table_shapes().items()}
    found = {str(table): _schema_break(config, table, listed) for table, listed in sorted(shapes.items(), key=str)}
    return {name: reason for name, reason in found.items() if reason}


def _schema_break(config: Config, table: TableId, shapes: Sequence[Table]) -> str:
    # Imported here, so that a daemon without contracts does not load them.
    from cdcflow.tables.formats import rules_of
    from cdcflow.tables.merge.contract import check_columns
    from cdcflow.tables.merge.evolution import evolve
    from cdcflow.tables.merge.modes import decide_mode
    from cdcflow.tables.merge.refusals import CannotFollow

    known = policies(config)
    policy = known.of(str(table))
    if not policy.contract:
        return ""
    living = [shape for shape in shapes if shape.incarnation == shapes[-1].incarnation]
    try:
        mode = decide_mode(table, None, policy)
        format_ = rules_of(config.merge.format)
        target = evolve(None, living, None, format_, mode, new_versions=policy.keeps_versions).target
    except CannotFollow:
        return ""
    routed = dict.fromkeys(known.routes.destination(table).key, "string")
    sent = routed | {c.name: c.type for c in target.columns if c.number not in target.dropped}
    try:
        warnings = check_columns(table, policy.contract, sent | dict(mode.columns))
    except CannotFollow as error:
        return str(error).splitlines()[0]
    return "; ".join(f"column {column} {why}" for column, why in warnings.items())
