"""A chunk that is read in parts, when the reading ends before all of them began."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.support.polling import PATIENCE_S

from cdcflow.sources.engine.chunks import settle


def test_part_that_never_began_is_not_waited_for() -> None:
    """A daemon is asked to stop while a chunk's parts wait for their turn: it stops."""
    readers = ThreadPoolExecutor(1)
    may_end = threading.Event()
    running = readers.submit(may_end.wait, PATIENCE_S)
    queued = readers.submit(may_end.wait, PATIENCE_S)
    readers.shutdown(wait=False, cancel_futures=True)
    waiting = threading.Thread(target=settle, args=([running, queued],), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "one part is still being read"
    may_end.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_errors_of_parts_are_raised_by_their_caller() -> None:
    """The first error is what a chunk ends with; the others must not hide it."""
    with ThreadPoolExecutor(2) as readers:
        failed = readers.submit(lambda: 1 // 0)
        settle([failed, readers.submit(lambda: 1)])
    assert isinstance(failed.exception(), ZeroDivisionError)
