"""The control socket: how other commands of the same user talk to a running daemon.

A Unix socket `control.sock` in the log's folder, mode 0600: the file system decides who may connect, nothing listens on
the network. One JSON object per line each way, one answer for one request, then the connection ends:

    → {"op": "backfill", "tables": ["public.flights"]}
    ← {"ok": {…}}      or      ← {"error": "…", "kind": "ConfigurationError"}

This module depends only on the callable that answers; the caller defines what the operations mean.
"""

from __future__ import annotations

import contextlib
import json
import pwd
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cdcflow import errors
from cdcflow.errors import CdcflowError, ConfigurationError

SOCKET_NAME = "control.sock"
LINE_BYTES_MAX = 1 << 20
_PATH_BYTES_MAX = 100  # the kernel takes 107 on Linux and 103 on macOS, and cuts or refuses longer ones

Answer = Callable[[Mapping[str, Any], str], object]
"""Answers a request of a caller, whose name is the second argument."""


class ControlServer:
    """Answers requests on a log's control socket until closed.

    `answer` gets the request and the caller (according to the kernel), and returns something JSON can hold; a
    `CdcflowError` or `ValueError` it raises becomes the error of the answer. Each request has a separate thread, so
    that a long one does not delay a request for the status. `replaces`: another daemon may have a socket there, and
    this one has taken its place.
    """

    def __init__(self, log_path: Path, answer: Answer, *, replaces: bool = False) -> None:
        self._replaces = replaces
        self._number = -1  # of the socket's file
        self._path = log_path / SOCKET_NAME
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._answering: list[threading.Thread] = []
        self._closed = False

    def start(self) -> None:
        """Create the socket in the file system and begin to answer.

        Raises:
            ConfigurationError: another daemon answers there.
        """
        if not self._replaces and ask(self._path.parent, {"op": "ping"}, timeout_s=2) is not None:
            raise ConfigurationError(f"another cdcflow daemon already answers at {self._path}", runbook="two-daemons")
        # No answer, so a killed daemon left this.
        self._path.unlink(missing_ok=True)
        with _short(self._path) as path:
            self._socket.bind(path)
        # Between bind and listen no client can connect, so the mode is right before the first one does.
        self._path.chmod(0o600)
        self._number = self._path.stat().st_ino
        self._socket.listen(8)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        if not self._thread.is_alive():
            self._socket.close()
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._number:  # otherwise it is another daemon's by now
                self._path.unlink()
        self._thread.join(timeout=5)
        # The caller that requested the stop still gets its answer.
        until = time.monotonic() + 5
        for answering in self._answering:
            answering.join(timeout=max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            answering = threading.Thread(target=self._serve_one, args=(connection,), name="control-answer", daemon=True)
            self._answering = [*(thread for thread in self._answering if thread.is_alive()), answering]
            answering.start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            connection.sendall(_line(self._answer_line(_read_line(connection), user_of(connection))))

    def _answer_line(self, line: bytes, asked_by: str) -> Mapping[str, object]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return {"error": "a request must be one JSON object on one line", "kind": "ValueError"}
            return {"ok": {}} if request.get("op") == "ping" else {"ok": self._answer(request, asked_by)}
        except json.JSONDecodeError:
            return {"error": "a request must be one JSON object on one line", "kind": "ValueError"}
        except (CdcflowError, ValueError) as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # noqa: BLE001 - a broken answer must not end the daemon; its text may hold values
            return {"error": f"the daemon could not answer: {type(error).__name__}", "kind": "InvariantViolated"}


def user_of(connection: socket.socket) -> str:
    """Return the user at the other end of a Unix socket, according to the kernel."""
    if not hasattr(socket, "SO_PEERCRED"):
        return "command line"  # macOS: the socket's mode allows only the same user, or root
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return f"command line, {user_name(uid)}"


def user_name(uid: int) -> str:
    """Return a user's name and number; the number alone if no user has it."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def ask(log_path: Path, request: Mapping[str, object], *, timeout_s: float = 10) -> Any | None:
    """Return the running daemon's answer; `None` if no daemon runs on this log.

    Raises:
        CdcflowError: the daemon refused; the same kind and message as it gave.
        ConfigurationError: there is a daemon, but this user may not talk to it.
    """
    path = log_path / SOCKET_NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        connection.settimeout(timeout_s)
        try:
            with _short(path) as name:
                connection.connect(name)
            connection.sendall(_line(request))
            line = _read_line(connection)
        except PermissionError:
            raise ConfigurationError(
                f"a daemon's socket is at {path}, but this user may not open it",
                remedy="run this command as the user that runs the daemon",
                runbook="no-daemon",
            ) from None
        except TimeoutError:
            raise errors.SinkUnavailable(f"the daemon at {path} did not answer within {timeout_s:g} s") from None
        except OSError:
            return None
    if not line:
        return None
    answer = json.loads(line)
    if "error" in answer:
        raise _error(str(answer.get("kind")))(answer["error"])
    return answer["ok"]


def _error(kind: str) -> type[CdcflowError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, CdcflowError) else ConfigurationError


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode() + b"\n"


def _read_line(connection: socket.socket) -> bytes:
    """One line without its end; what was read so far if the other side hung up or sent too much."""
    received = bytearray()
    while b"\n" not in received and len(received) <= LINE_BYTES_MAX:
        piece = connection.recv(65536)
        if not piece:
            break
        received += piece
    return bytes(received.partition(b"\n")[0])


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name for `path` that fits into a socket address: through a link to its folder if it is too long."""
    if len(bytes(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    # Not TMPDIR, which may be long itself.
    with tempfile.TemporaryDirectory(prefix="cdcflow-", dir="/tmp") as folder:
        link = Path(folder) / "log"
        link.symlink_to(path.parent.absolute())
        yield str(link / path.name)
