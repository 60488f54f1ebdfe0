"""A process that reads parts of chunks and may kill itself with SIGKILL: `killablereader.py [POINT COUNT]`.

Its number and invitation come pickled on stdin. `POINT` is `before:read`, `after:read`, `before:write` or
`after:write`; it dies at the COUNT-th such call.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from itertools import count
from typing import Any

from cdcflow.spark.held import Invitation, Reader, serve


def arm(point: str, last: int) -> None:
    when, name = point.split(":")
    original = getattr(Reader, f"_{name}")
    numbers = count(1)

    def wrapped(self: Reader, request: Any) -> Any:
        number = next(numbers)
        if when == "before" and number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, request)
        if when == "after" and number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(Reader, f"_{name}", wrapped)


def begin(number: int, invitation: Invitation, *point: str) -> subprocess.Popen[bytes]:
    """One that runs."""
    process = subprocess.Popen([sys.executable, __file__, *point], stdin=subprocess.PIPE)
    assert process.stdin is not None
    pickle.dump((number, invitation), process.stdin)
    process.stdin.close()
    return process


if __name__ == "__main__":
    if len(sys.argv) > 1:
        arm(sys.argv[1], int(sys.argv[2]))
    serve(*pickle.load(sys.stdin.buffer))  # noqa: S301  from the test that started it
