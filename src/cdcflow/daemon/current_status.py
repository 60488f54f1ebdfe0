"""The current status of a pipeline: from the running daemon, or from the log and the source if none runs."""

from __future__ import annotations

from typing import Any

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import Config
from cdcflow.daemon.daemon import problems
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.daemon.status import (
    broken_contracts,
    in_log,
    known_log_id,
    merge_status,
    source_status,
    targets_status,
)
from cdcflow.errors import CdcflowError
from cdcflow.log.maintenance import state_files
from cdcflow.model.position import Checkpoint, position_text


def current(settings: Config) -> dict[str, Any]:
    """Return the status of the running daemon, or of the log when none runs."""
    found = ask(settings.log.folder, {"op": "status"}) or _without_daemon(settings)
    return {**found, **wiring.upload_status(settings)}


def _without_daemon(settings: Config) -> dict[str, Any]:
    """Return the status if no daemon on this machine captures; a standby does not answer. Another machine's may
    capture."""
    found = {**_from_log(settings), **_lease(settings)}
    holder = found.get("lease", {}).get("holder")
    if holder is None or found["state"] != "stopped":
        return found
    active = {"state": "standby", "reason": f"{holder} captures"}
    return {**found, **active, "tables": _unproven(found["tables"], f"{holder} captures it, and knows")}


def _lease(settings: Config) -> dict[str, Any]:
    """Return the holder of the lease, if the settings have a lease, for a machine without an active daemon."""
    if settings.service.lease is None:
        return {}
    try:
        holder = wiring.lease_holder(settings)
    except CdcflowError as error:
        return {"lease": {"error": str(error).split("\n")[0]}}
    return {"lease": {} if holder is None else {"holder": holder.name, "holder_since": holder.since}}


def _from_log(settings: Config) -> dict[str, Any]:
    """Return the log's latest cut and the source's status, while no daemon runs."""
    reader = wiring.log_reader(settings)
    problem = wiring.log_problem(settings)
    wrong = {} if problem is None else {"log_problem": problem}
    halted = state_files.of_halt(settings.log.folder)
    ended = {} if halted is None else {"state": "halted", **halted}
    if not reader.exists():
        state = {"state": "no log" if wrong else "never run", **ended}
        return {**state, "tables": {}, **wrong, **source_status(settings, None, "")}
    checkpoint = reader.newest_checkpoint()
    durable = checkpoint.next_offset - 1
    merged = state_files.of_merge(settings.log.folder)
    progress = Progress.from_json(checkpoint.progress)
    paused = {"reason": "and the capture is paused until `cdcflow ctl resume`"} if progress.capture_paused else {}
    return {
        "state": "stopped",
        **paused,
        **ended,
        **in_log(checkpoint),
        "durable_offset": durable,
        "tables": _unproven(progress.to_status(settings.database.backfill.rows_per_second_max or 0)),
        **({} if merged is None else {"merge": merge_status(merged, durable)}),
        **({"targets": found} if (found := targets_status(settings, durable, {})) else {}),
        "verified": state_files.of_verified(settings.log.folder),
        **({"consumers": found} if (found := wiring.consumers_status(settings, durable)) else {}),
        **wrong,
        **({"broken_contracts": broken} if (broken := broken_contracts(settings)) else {}),
        **source_status(settings, position_text(checkpoint.position), known_log_id(settings)),
        "problems": problems(settings),
        **_would_leave_out(settings, checkpoint),
    }


def _unproven(tables: Any, reason: str = "no daemon captures it") -> dict[str, Any]:
    """Return tables' entries of a status with `freshness` "not proven", and the reason."""
    why = {"freshness": "not proven", "freshness_reason": reason}
    return {name: {**fields, **why} for name, fields in tables.items()}


def _would_leave_out(settings: Config, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the tables that the next start would exclude; {} if the source cannot be queried, which the status
    reports separately."""
    source = wiring.open_source(settings)
    try:
        return {"left_out": [str(t) for t in source.left_out(checkpoint)]} if checkpoint.position is not None else {}
    except CdcflowError:
        return {}
    finally:
        source.close()
