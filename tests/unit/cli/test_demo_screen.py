"""The demo's screen: a bar in a terminal, few lines elsewhere, and never silent for long."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from cdcflow.demo import screen
from cdcflow.demo.engines import Local
from cdcflow.demo.screen import Screen

STATUS = {"cut": 3, "tables": {"public.flights": {"state": "reading", "units": 10, "units_done": 4, "rows": 99}}}


def test_without_a_terminal_a_status_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Thirty-nine lines of "writer" were printed before the demo's own output."""
    with Screen(2) as shown:
        shown.step("reading")
        for _ in range(100):
            shown.show(STATUS, {"flight": 7})
        shown.finish_step("read")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_long_step_is_named_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two silent minutes look like a hang."""
    monkeypatch.setattr(screen, "LINE_EVERY_S", 0.0)
    said = ""
    with Screen(2) as shown:
        shown.step("second merge")
        while "still second merge" not in said:
            time.sleep(0.01)
            said += capsys.readouterr().out


def test_the_bar_counts_what_is_done() -> None:
    shown = Screen(4)
    assert "█" not in shown._progress()
    for number in range(3):
        shown.step(f"step {number}")
    assert shown._progress().count("█") == screen.BAR_WIDTH // 2
    assert "step 3 of 4: step 2" in shown._progress()


def test_the_proof_without_spark_sees_each_kind_of_value(tmp_path: Path) -> None:
    """A value that two texts share would hide a difference."""
    engine = Local(tmp_path)

    def digest(values: list[object], type_: pa.DataType, kind: str) -> object:
        return engine.digest(pa.table({"a": pa.array(values, type_)}), [("a", kind)])

    seen = [
        digest([None], pa.string(), "text"),
        digest(["-"], pa.string(), "text"),
        digest([""], pa.string(), "text"),
        digest([1.5], pa.float64(), "double precision"),
        digest([-1.5], pa.float64(), "double precision"),
        digest([float("nan")], pa.float64(), "double precision"),
        digest([b"\x01"], pa.binary(), "bytea"),
        digest([True], pa.bool_(), "boolean"),
        digest([dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"), "timestamp with time zone"),
        digest([dt.date(2026, 1, 2)], pa.date32(), "date"),
        digest([Decimal("1.50")], pa.decimal128(4, 2), "numeric"),
    ]
    assert len(set(map(str, seen))) == len(seen)
    assert digest([1, 2], pa.int64(), "bigint") == digest([2, 1], pa.int64(), "bigint")
    assert digest([1, 1], pa.int64(), "bigint") != digest([1], pa.int64(), "bigint")
