"""Deliveries of a log to a target by its settings: for `cdcflow deliver`, and for the delivery processes of `cdcflow
run`.

A delivery leaves its result in the log's folder, where the daemon and `cdcflow status` find it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cdcflow.config import Config
from cdcflow.log.maintenance import state_files

if TYPE_CHECKING:
    from cdcflow.model.table import TableId
    from cdcflow.targets.delivery import DeliveryReport
    from cdcflow.wiring.targets import TargetHeld

HOLDER_WITHIN_S = 60.0
HOLDER_EVERY_S = 0.1
DELIVER_EVERY_S = 10.0
"""How often `cdcflow deliver` delivers to a target without an interval."""


def deliver_to(settings: Config, name: str, watch: Callable[[TableId], None] = lambda table: None) -> DeliveryReport:
    """Bring the tables of one target to the end of the log. The caller holds the target.

    Raises:
        SinkUnavailable: the target or the log does not answer.
        ConfigurationError: there is no log, or the target cannot be opened.
    """
    from cdcflow import wiring

    folder = settings.log.folder
    began = time.monotonic()
    try:
        with wiring.open_delivery(settings, name) as delivery:
            report = delivery.deliver(watch)
    except Exception as error:
        state_files.write_target_failure(folder, name, error)
        raise
    state_files.write_target(
        folder,
        name,
        offset=report.offset,
        seconds=time.monotonic() - began,
        rows=sum(one.rows + one.deleted for one in report.tables),
        stopped={one.table: {"reason": one.problem, "remedy": one.remedy} for one in report.stops},
        waiting=[one.table for one in report.pending],
    )
    return report


def wait_for_holder(settings: Config, name: str, held: TargetHeld) -> Mapping[str, Any]:
    """Wait until the process that holds a target has delivered what the log has now. Return what it has written.

    Raises:
        TargetHeld: it did not within `HOLDER_WITHIN_S`.
    """
    from cdcflow import wiring

    end = wiring.log_reader(settings).newest_checkpoint().next_offset - 1
    until = time.monotonic() + HOLDER_WITHIN_S
    while time.monotonic() < until:
        found = state_files.of_target(settings.log.folder, name) or {}
        if not found.get("failed") and found.get("offset", -1) >= end:
            return found
        time.sleep(HOLDER_EVERY_S)
    raise held
