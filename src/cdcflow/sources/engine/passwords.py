"""The password of a source: from a reference, or printed by a command and used until it expires.

A printed password stays in this process's memory. It is in no argument, environment, file, error or log line; nor is
anything else that the command writes, because a failed command may have printed the password as well.

A printed password is used for every new connection until it is `expires` old. A server may refuse it earlier: it was
rotated, or a token was revoked. Then the command runs again at once, and the connection is tried once more, but only
with a different password: some servers lock an account after a few wrong ones.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Protocol, runtime_checkable

from cdcflow.config import PasswordCommand, secret
from cdcflow.errors import ConfigurationError, SourceUnavailable

OUTPUT_BYTES_MAX = 1 << 16
"""The most bytes that a command may print: tokens have up to some thousand."""


Secret = Callable[[], str | None]
"""Returns the password, which is resolved again for every connection, so that a rotated one is picked up (P65). None:
the server needs none."""


@runtime_checkable
class RenewableSecret(Protocol):
    """A password that is remembered, and can be renewed."""

    def __call__(self) -> str | None: ...

    def after_refusal(self, refused: str | None) -> str | None:
        """Return another password, after the server refused this one; None if no other is available."""
        ...


def secret_of(password: str | PasswordCommand | None) -> Secret:
    """Return the password that `source.password` describes. Equal commands give the same object, so all connections of
    this process share a printed password."""
    return printed_password(password) if isinstance(password, PasswordCommand) else lambda: secret(password)


@cache
def printed_password(settings: PasswordCommand) -> PrintedPassword:
    return PrintedPassword(settings)


class PrintedPassword:
    """A password printed by a command, as a `RenewableSecret`. Safe to use from any thread: one runs the command,
    others wait."""

    def __init__(self, settings: PasswordCommand, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._printed: str | None = None
        self._expires_at = 0.0

    def __call__(self) -> str:
        """Return the password.

        Raises:
            SourceUnavailable: the command failed, took too long, or printed no password.
            ConfigurationError: the command does not exist, or is not a program.
        """
        with self._lock:
            return self._current()

    def after_refusal(self, refused: str | None) -> str | None:
        """Return a password other than the refused one: if another thread has obtained one in the meantime, that one;
        otherwise the command runs again.

        None if the command prints the refused password again. Raises the errors of a call.
        """
        with self._lock:
            if self._printed == refused:
                self._printed = None
            current = self._current()
        return None if current == refused else current

    def _current(self) -> str:
        if self._printed is None or self._clock() >= self._expires_at:
            self._printed = None
            self._expires_at = self._clock() + self._settings.expires  # a token's age begins before it is printed
            self._printed = _run(self._settings)
        return self._printed


def _run(settings: PasswordCommand) -> str:
    program = settings.command[0]
    try:
        process = subprocess.Popen(  # noqa: S603  the operator's own command, without a shell
            settings.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a failed command may print the password there
            start_new_session=True,  # so that what it starts is killed with it, and Ctrl-C does not reach it
        )
    except OSError as error:
        raise ConfigurationError(
            f"the command of source.password, {program}, cannot be run: {error.strerror}",
            remedy="correct source.password.command: a program that the daemon's user may run, as a list",
            runbook="password-command",
        ) from None
    deadline = time.monotonic() + settings.timeout
    with contextlib.closing(_Output(process)) as output:
        printed = output.read(deadline)
        if len(printed) > OUTPUT_BYTES_MAX:
            raise _failure(program, f"printed more than {OUTPUT_BYTES_MAX >> 10} KiB")
        code = output.exit_code(deadline)
    if code is None:
        raise _failure(program, f"did not end within {settings.timeout:g} s")
    if code != 0:
        raise _failure(program, f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}")
    return _password_in(printed, program)


class _Output:
    """The output of a process. Reading never lasts beyond a deadline, because a child of the process may keep the pipe
    open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        self._process = process
        self._pipe = process.stdout

    def read(self, deadline: float) -> bytes:
        """Read everything until the end. Stops at the deadline, or once a little more than the limit was printed."""
        found = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while len(found) <= OUTPUT_BYTES_MAX and (left := deadline - time.monotonic()) > 0:
                if selector.select(left):
                    piece = os.read(self._pipe.fileno(), OUTPUT_BYTES_MAX)
                    if not piece:
                        break
                    found += piece
        return found

    def exit_code(self, deadline: float) -> int | None:
        """Return the process's exit code; None if the process or its output has not ended by the deadline."""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        return None if time.monotonic() >= deadline else code

    def close(self) -> None:
        """Kill the process and its children, if it is still running."""
        self._pipe.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _password_in(printed: bytes, program: str) -> str:
    """Return the single line that a command printed, as the password."""
    try:
        text = printed.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _failure(program, "printed bytes that are not UTF-8 text") from None
    if not text:
        raise _failure(program, "printed nothing")
    if "\n" in text or "\0" in text:
        raise _failure(program, "printed more than one line")
    return text


def _failure(program: str, what: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"getting the password of the source: the command of source.password, {program}, {what}",
        remedy="run it as the daemon's user, in the daemon's environment: it must print the password as one line, and "
        "nothing else, to its standard output (cdcflow shows nothing of what it prints)",
        runbook="password-command",
    )
