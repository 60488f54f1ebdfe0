"""The control socket: one line, one answer, only for the same user."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdcflow.daemon.interfaces.control_socket import LINE_BYTES_MAX, SOCKET_NAME, ControlServer, ask, user_name
from cdcflow.errors import ConfigurationError, SourceUnavailable

Serve = Callable[[Path, Callable[[Mapping[str, Any], str], object]], ControlServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a control server on a log's folder; closed after the test."""
    with ExitStack() as stack:

        def start(log: Path, answer: Callable[[Mapping[str, Any], str], object]) -> ControlServer:
            server = ControlServer(log, answer)
            server.start()
            stack.callback(server.close)
            return server

        yield start


def echo(request: Mapping[str, Any], asked_by: str) -> object:
    return {"heard": dict(request)}


def raw(log: Path, sent: bytes) -> bytes:
    """What the socket answers to these bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(log / SOCKET_NAME))
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)


def test_request_gets_no_answer_where_no_daemon_runs(tmp_path: Path) -> None:
    """Commands then read the log themselves, so this is no error."""
    assert ask(tmp_path, {"op": "status"}) is None


def test_request_gets_its_answer(tmp_path: Path, serve: Serve) -> None:
    """The plain case, twice: a connection is for one request, the server for many."""
    serve(tmp_path, echo)
    for op in ("status", "backfill"):
        assert ask(tmp_path, {"op": op, "tables": ["a.b"]}) == {"heard": {"op": op, "tables": ["a.b"]}}


def test_refusal_keeps_its_kind_and_message(tmp_path: Path, serve: Serve) -> None:
    """The caller needs the daemon's own words, and the exit code that belongs to them."""

    def refuse(request: Mapping[str, Any], asked_by: str) -> object:
        raise SourceUnavailable("the capture is waiting", remedy="wait")

    serve(tmp_path, refuse)
    with pytest.raises(SourceUnavailable, match="waiting\n  wait"):
        ask(tmp_path, {"op": "pause"})


def test_fault_in_an_answer_ends_neither_server_nor_secrecy(tmp_path: Path, serve: Serve) -> None:
    """S03: an unforeseen error may carry a row's values; only its type leaves the daemon."""

    def break_down(request: Mapping[str, Any], asked_by: str) -> object:
        raise KeyError("canary")

    serve(tmp_path, break_down)
    for _ in range(2):
        with pytest.raises(Exception, match="KeyError") as caught:
            ask(tmp_path, {"op": "status"})
        assert "canary" not in str(caught.value)


def test_only_the_owner_may_connect(tmp_path: Path, serve: Serve) -> None:
    """S07: any process that can connect can pause a table; the file system decides which may."""
    serve(tmp_path, echo)
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600


def test_socket_of_a_killed_daemon_is_replaced(tmp_path: Path, serve: Serve) -> None:
    """After SIGKILL the file still exists; the next daemon must start without manual cleanup."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    assert ask(tmp_path, {"op": "status"}) is None
    serve(tmp_path, echo)
    assert ask(tmp_path, {"op": "x"}) == {"heard": {"op": "x"}}


def test_second_daemon_does_not_take_the_first_ones_socket(tmp_path: Path, serve: Serve) -> None:
    """P75: commands would reach the wrong process."""
    serve(tmp_path, echo)
    second = ControlServer(tmp_path, lambda request, asked_by: {"second": True})
    with pytest.raises(ConfigurationError, match="another cdcflow daemon"):
        second.start()
    second.close()
    assert ask(tmp_path, {"op": "x"}) == {"heard": {"op": "x"}}


def test_closed_server_removes_its_socket(tmp_path: Path) -> None:
    """A socket file without a listener makes every later command wait or guess."""
    server = ControlServer(tmp_path, echo)
    server.start()
    server.close()
    assert not (tmp_path / SOCKET_NAME).exists()


def test_path_longer_than_the_kernel_allows_still_works(tmp_path: Path, serve: Serve) -> None:
    """Socket addresses end at about 100 bytes; a log in a deep folder must not lose its control socket."""
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    serve(deep, echo)
    assert ask(deep, {"op": "x"}) == {"heard": {"op": "x"}}
    assert (deep / SOCKET_NAME).is_socket()


@pytest.mark.parametrize("sent", [b"\n", b"[]\n", b"nonsense\n", b"\xff\xfe\n", b'{"op": "status"', b'"x"\n'])
def test_garbage_gets_an_error_and_the_server_continues(tmp_path: Path, serve: Serve, sent: bytes) -> None:
    """Stray bytes from any process must not end the capture."""
    serve(tmp_path, echo)
    assert b'"error"' in raw(tmp_path, sent)
    assert ask(tmp_path, {"op": "x"}) == {"heard": {"op": "x"}}


def test_endless_line_is_cut_off(tmp_path: Path, serve: Serve) -> None:
    """A client that never ends its line must not fill the daemon's memory."""
    serve(tmp_path, echo)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(tmp_path / SOCKET_NAME))
        with pytest.raises(OSError, match=r"pipe|reset"):  # noqa: PT012 - the server hangs up at some point of these
            for _ in range(64):
                connection.sendall(b"x" * (LINE_BYTES_MAX // 8))
    assert ask(tmp_path, {"op": "x"}) == {"heard": {"op": "x"}}


def test_caller_is_identified_by_the_kernel(tmp_path: Path, serve: Serve) -> None:
    """A name in the request could be anything the caller writes, and it is recorded in the log."""
    serve(tmp_path, lambda request, asked_by: {"by": asked_by})
    assert ask(tmp_path, {"op": "x", "asked_by": "root"}) == {"by": f"command line, {user_name(os.getuid())}"}
    assert user_name(2**31 - 7) == "uid 2147483641"


def test_slow_answer_keeps_no_client_from_the_status_and_is_given_at_the_end(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query searches for rows for a minute; and the caller that requested a stop gets its answer although the
    server closes."""
    asked, go_on = threading.Event(), threading.Event()

    def answer(request: Mapping[str, Any], asked_by: str) -> object:
        if request["op"] == "slow":
            asked.set()
            assert go_on.wait(30)
        return {"op": request["op"]}

    server = serve(tmp_path, answer)
    found: list[object] = []
    slow = threading.Thread(target=lambda: found.append(ask(tmp_path, {"op": "slow"}, timeout_s=30)))
    slow.start()
    assert asked.wait(30)
    assert ask(tmp_path, {"op": "status"}) == {"op": "status"}
    answering = server._answering[0]
    joined = answering.join

    def join(timeout: float | None = None) -> None:
        go_on.set()
        joined(30)

    monkeypatch.setattr(answering, "join", join)
    server.close()
    assert go_on.is_set(), "it waits for the answer"
    slow.join(30)
    assert found == [{"op": "slow"}]
