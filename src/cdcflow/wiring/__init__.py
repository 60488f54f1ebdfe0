"""Connects concrete sources, sinks and the capture: the only package that imports all of them.

The commands, the demo and programs that embed cdcflow start here with a `Config`.
"""

from cdcflow.wiring.attachment import attach_table
from cdcflow.wiring.captures import (
    addresses,
    capture,
    capture_settings,
    control_table,
    limits,
    log_event,
    open_source,
    publisher,
    releases,
    transform_counts,
)
from cdcflow.wiring.cleanup import drop, leftovers
from cdcflow.wiring.commands import commands_in_log, gaps_in_log, repairs_in_log
from cdcflow.wiring.derived import report_derived, report_derived_of_several
from cdcflow.wiring.executors import check_readers, readers
from cdcflow.wiring.findings import continues, doctor, log_problem, store_faults, upload_status
from cdcflow.wiring.leases import held_lease, lease_holder
from cdcflow.wiring.log_budget import budget, budgeted_log, known_slot, log_limits
from cdcflow.wiring.logs import (
    compacting,
    copy_log,
    existing_log,
    expiring,
    history_layout,
    indexing,
    keeping,
    log_id,
    log_identity,
    log_layout,
    log_reader,
    open_log,
    retention,
    sealed_bounds,
    sealed_layout,
    sealed_layout_of,
    topics,
    workers,
)
from cdcflow.wiring.migrations import rehearse_ddl
from cdcflow.wiring.moves import PlannedMove, move, plan_move, settings_at
from cdcflow.wiring.plans import log_growth, plan_capture
from cdcflow.wiring.push_log import open_push_log
from cdcflow.wiring.queries import consumers_status, open_for_queries
from cdcflow.wiring.rebuild import rebuild_tables
from cdcflow.wiring.schema_contracts import schema_breaks
from cdcflow.wiring.source_load import reading_limits
from cdcflow.wiring.targets import hold_target, open_delivery, verify_targets
from cdcflow.wiring.verification import run_verification
from cdcflow.wiring.warehouses import (
    check_logs_to_merge,
    engines,
    is_in_quarantine,
    logs_to_merge,
    merge_layout,
    policies,
    reading_engine,
    tier,
    upkeep_policy,
    warehouse,
)

__all__ = [
    "attach_table",
    "budget",
    "budgeted_log",
    "known_slot",
    "reading_limits",
    "releases",
    "capture",
    "capture_settings",
    "control_table",
    "limits",
    "log_event",
    "open_source",
    "open_for_queries",
    "open_delivery",
    "hold_target",
    "verify_targets",
    "publisher",
    "addresses",
    "commands_in_log",
    "repairs_in_log",
    "gaps_in_log",
    "continues",
    "drop",
    "leftovers",
    "doctor",
    "log_problem",
    "store_faults",
    "upload_status",
    "consumers_status",
    "compacting",
    "copy_log",
    "history_layout",
    "indexing",
    "keeping",
    "held_lease",
    "lease_holder",
    "log_id",
    "log_identity",
    "PlannedMove",
    "move",
    "plan_move",
    "settings_at",
    "log_layout",
    "existing_log",
    "log_reader",
    "open_log",
    "retention",
    "sealed_bounds",
    "sealed_layout",
    "sealed_layout_of",
    "expiring",
    "topics",
    "transform_counts",
    "log_growth",
    "log_limits",
    "plan_capture",
    "open_push_log",
    "check_readers",
    "readers",
    "rebuild_tables",
    "rehearse_ddl",
    "report_derived",
    "report_derived_of_several",
    "engines",
    "check_logs_to_merge",
    "is_in_quarantine",
    "logs_to_merge",
    "merge_layout",
    "policies",
    "reading_engine",
    "tier",
    "upkeep_policy",
    "run_verification",
    "schema_breaks",
    "warehouse",
    "workers",
]
