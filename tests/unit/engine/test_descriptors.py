"""Sockets are waited for, whatever numbers they have."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from cdcflow.sources.engine.descriptors import READABLE, WRITABLE, wait_until

BEYOND_SELECT = 1024
"""The first descriptor that select(2) has no place for."""


@pytest.fixture
def high_number() -> Iterator[int]:
    """One that select(2) does not know, and that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, BEYOND_SELECT + 100), hard))
    yield BEYOND_SELECT
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_socket_with_a_high_number_is_waited_for(high_number: int) -> None:
    near, far = socket.socketpair()
    with near, far:
        descriptor = fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, high_number)
        try:
            assert wait_until(WRITABLE, descriptor, 0)
            assert not wait_until(READABLE, descriptor, 0)
            far.send(b"x")
            assert wait_until(READABLE, descriptor, 5)
        finally:
            os.close(descriptor)


def test_what_broke_is_not_waited_for() -> None:
    near, far = socket.socketpair()
    with near:
        far.close()
        assert wait_until(READABLE, near.fileno(), 5)
