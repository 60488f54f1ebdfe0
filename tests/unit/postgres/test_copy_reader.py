"""How messages of a connection in COPY state are taken out of libpq's buffer, by compiled code and through psycopg."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import pytest
from psycopg import pq

from cdcflow.sources.postgres import copy_reader
from cdcflow.sources.postgres.copy_reader import CopyReader

DATA, KEEPALIVE = b"w" + bytes(40), b"k" + bytes(17)


class Connection:
    """What libpq does with a connection: a read brings the next `arriving` into its buffer, a get takes one message."""

    def __init__(self, arriving: list[list[bytes]]) -> None:
        self._arriving = arriving
        self._buffer: list[bytes] = []
        self.held: list[int] = []
        """How many messages the buffer had at each read."""

    def consume_input(self) -> None:
        self.held.append(len(self._buffer))
        if self._arriving:
            self._buffer += self._arriving.pop(0)

    def get_copy_data(self, _async: int) -> tuple[int, memoryview]:
        message = self._buffer.pop(0) if self._buffer else b""
        return len(message), memoryview(message)


def compiled_reader(connection: Connection) -> CopyReader:
    """The compiled code on it: libpq's functions are passed as addresses."""
    kept: list[Any] = []

    def get(_: int, at: Any, wait: int) -> int:
        length, message = connection.get_copy_data(wait)
        kept.append(ctypes.create_string_buffer(bytes(message), max(length, 1)))
        at[0] = ctypes.addressof(kept[-1])
        return length

    def consume(_: int) -> int:
        connection.consume_input()
        return 1

    pointer = ctypes.POINTER(ctypes.c_void_p)
    kept += [
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, pointer, ctypes.c_int)(get),
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(consume),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None),
    ]
    addresses = tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in kept)
    reader = CopyReader(cast(pq.abc.PGconn, connection), "stream")
    assert copy_reader.compiled is not None
    reader._drain = copy_reader.compiled.Drain(0, addresses, "stream")
    connection.functions = kept  # type: ignore[attr-defined]  # as long as the connection
    return reader


@pytest.mark.parametrize("plain", [True, False])
def test_the_socket_is_read_only_when_all_of_the_buffer_is_taken(plain: bool) -> None:
    """A server that has sent all sends a keepalive after each commit. To read the socket at each of them fills libpq's
    buffer quicker than it empties, and libpq moves all of it at each read: the server waited in vain for an answer."""
    connection = Connection([[DATA, DATA, KEEPALIVE] * 5, [DATA, KEEPALIVE] * 5, []])
    reader = CopyReader(cast(pq.abc.PGconn, connection), "stream", plain=True) if plain else compiled_reader(connection)
    taken = reader.take(1 << 20, 1000)
    assert len(taken.messages) == 15
    assert [before for before, _ in taken.aside] == [2, 4, 6, 8, 10, 11, 12, 13, 14, 15]
    assert connection.held == [0, 0, 0]
    assert (taken.more, taken.ended) == (False, False)


@pytest.mark.parametrize("plain", [True, False])
def test_the_rest_after_a_bound_is_taken_before_the_socket_is_read(plain: bool) -> None:
    connection = Connection([[DATA] * 25, [DATA] * 25])
    reader = CopyReader(cast(pq.abc.PGconn, connection), "stream", plain=True) if plain else compiled_reader(connection)
    taken = [reader.take(1 << 20, 10) for _ in range(6)]
    assert [len(t.messages) for t in taken] == [10, 10, 10, 10, 10, 0]
    assert [t.more for t in taken] == [True] * 5 + [False]
    assert set(connection.held) == {0}
