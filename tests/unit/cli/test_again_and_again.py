"""Commands that repeat one thing until they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cdcflow.daemon.signals import again_and_again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_under_way_is_finished_and_handlers_are_restored(number: signal.Signals) -> None:
    """A merge that is asked to stop publishes its cut first."""
    before = signal.getsignal(number)
    done: list[int] = []

    def act() -> None:
        if len(done) == 2:
            os.kill(os.getpid(), number)
        done.append(len(done))

    again_and_again(act, 0.0)
    assert done == [0, 1, 2]
    assert signal.getsignal(number) is before


def test_second_signal_ends_work_that_does_not_finish() -> None:
    """An operator who presses Ctrl-C twice does not want to wait."""
    code = """
import os, signal
from cdcflow.daemon.signals import again_and_again

def act():
    while True:
        os.kill(os.getpid(), signal.SIGINT)

again_and_again(act, 60)
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGINT
