"""Ctrl-C while Spark starts."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cdcflow.spark.session import holding_interrupts


def test_interrupt_takes_effect_when_spark_has_started(capsys: pytest.CaptureFixture[str]) -> None:
    """A JVM whose start was cut off kept running with the memory that it took, and nothing ended it."""
    started = []
    before = signal.getsignal(signal.SIGINT)

    def start() -> None:
        with holding_interrupts():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            started.append("the JVM")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["the JVM"]
    assert capsys.readouterr().err == "Spark is still starting; cdcflow ends it as soon as possible\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_spark_s_own_answer_to_interrupts_stays() -> None:
    """Spark's handler cancels what runs in the cluster; cdcflow's was for the start only."""
    before = signal.getsignal(signal.SIGINT)

    def of_spark(*_: object) -> None:
        pass

    try:
        with holding_interrupts():
            signal.signal(signal.SIGINT, of_spark)
        assert signal.getsignal(signal.SIGINT) is of_spark
    finally:
        signal.signal(signal.SIGINT, before)


def test_session_may_be_started_in_any_thread() -> None:
    """Only the main thread may set a signal handler; the demo starts Spark in another thread."""
    done = []

    def start() -> None:
        with holding_interrupts():
            done.append(True)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert done == [True]
