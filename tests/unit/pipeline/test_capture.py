"""Capture's retries: what is tried again, and what a stop in between makes of it."""

from __future__ import annotations

import pytest

from cdcflow.interleave.machine import Limits
from cdcflow.pipeline.attempt import Orders, Pace, TablesChanged
from cdcflow.pipeline.capture import Capture


def test_stop_while_the_list_of_tables_changes_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed list of tables is a reason for another attempt, never an error that a told stop ends with."""

    def unused(*_: object) -> None:
        raise AssertionError("nothing is opened")

    capture = Capture(
        open_source=unused,  # type: ignore[arg-type]  # never called
        open_log=unused,  # type: ignore[arg-type]  # never called
        limits=Limits(),
        orders=Orders(),
        pace=Pace(),
        on_event=lambda event, fields: None,
    )
    attempts = []

    def once() -> None:
        attempts.append(1)
        if len(attempts) == 2:
            capture.stop()
        raise TablesChanged

    monkeypatch.setattr(capture, "_once", once)
    capture.run()
    assert len(attempts) == 2
