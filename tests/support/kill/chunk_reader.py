"""A process that reads parts of chunks and may kill itself with SIGKILL: `chunk_reader.py [POINT COUNT]`.

Its number and invitation come pickled on stdin. `POINT` is `before:read`, `after:read`, `before:write`, `after:write`
or `within:file`; it dies at the COUNT-th such call, or when it has sent that many pieces of files.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from cdcflow.spark.executors import chunk_reader_process
from cdcflow.spark.executors.chunk_reader_process import Invitation, RequestReader, serve

SMALL_PIECE = 1000
"""So that every file has some."""


def arm(point: str, last: int) -> None:
    when, name = point.split(":")
    if name == "file":
        arm_within_file(last)
        return
    original = getattr(RequestReader, f"_{name}")
    numbers = count(1)

    def wrapped(self: RequestReader, request: Any) -> Any:
        number = next(numbers)
        if when == "before" and number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, request)
        if when == "after" and number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(RequestReader, f"_{name}", wrapped)


def arm_within_file(last: int) -> None:
    original = RequestReader.pieces
    chunk_reader_process.PIECE_BYTES = SMALL_PIECE
    numbers = count(1)

    def pieces(self: RequestReader) -> Iterator[memoryview]:
        for piece in original(self):
            yield piece
            if next(numbers) == last:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(RequestReader, "pieces", pieces)  # noqa: B010  a method, to which mypy allows no assignment


def begin(number: int, invitation: Invitation, *point: str) -> subprocess.Popen[bytes]:
    """A running reader."""
    process = subprocess.Popen([sys.executable, __file__, *point], stdin=subprocess.PIPE)
    assert process.stdin is not None
    pickle.dump((number, invitation), process.stdin)
    process.stdin.close()
    return process


if __name__ == "__main__":
    if len(sys.argv) > 1:
        arm(sys.argv[1], int(sys.argv[2]))
    serve(*pickle.load(sys.stdin.buffer))  # noqa: S301  from the test that started it
