"""Sends notices to receivers, by HTTP, by a command, as a file or by a plug-in, without ever delaying the capture.

    status ──(a thread polls every few seconds)──▶ notices ──▶ a queue and a thread for each receiver ──▶ the receiver
    merges ──(in the process that merges)─────────▶ cuts ─────▶ the same there

A receiver that does not answer is retried a few times, then the notice is dropped, with an event. A full queue loses
its oldest notice. At the end there are a few seconds for the last notice. URLs are secrets: no event holds one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdcflow.config import NotifierSettings, Notify, secret
from cdcflow.config.references import is_reference
from cdcflow.daemon.interfaces.notices import CUT_PUBLISHED, Notice, Noticing, Tables, of_the_end
from cdcflow.errors import CdcflowError
from cdcflow.wiring.plugged import notifier_of

LOOK_EVERY_S = 5.0
ANSWER_WITHIN_S = 5.0
PAUSES_S = (1.0, 5.0, 20.0)
LAST_WORD_S = 3.0
WAITING_MAX = 100

OnEvent = Callable[[str, Mapping[str, object]], None]
StatusOf = Callable[[], Mapping[str, Any]]
ReceiverSettings = Notify | NotifierSettings


class _Receiver:
    """One receiver with its queue and its thread."""

    def __init__(
        self, name: str, settings: ReceiverSettings, tell: OnEvent, pauses_s: Sequence[float], tables: Tables
    ) -> None:
        self.name = name
        self.settings = settings
        self._tell = tell
        self._pauses_s = pauses_s
        self._noticing = Noticing(settings.lag_over, settings.headroom_under, tables)
        self._waiting: deque[Mapping[str, object]] = deque(maxlen=WAITING_MAX)
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._is_sending = False
        self._outcomes = {"sent": 0, "failed": 0}
        self._thread = threading.Thread(target=self._deliver, name=f"notify-{name}", daemon=True)
        self._thread.start()

    def look(self, status: Mapping[str, Any]) -> None:
        for notice in self._noticing.of(status):
            self.put(notice)

    def put(self, notice: Notice) -> None:
        if notice.event not in self.settings.on:
            return
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        said = {"event": notice.event, "active": notice.active, "text": notice.text, "at": at, **notice.fields}
        with self._changed:
            self._waiting.append({**said, "host": socket.gethostname()})
            self._changed.notify_all()

    def counts(self) -> dict[str, int]:
        """Return how many notices were sent, how many the receiver did not accept, and how many wait."""
        return {**self._outcomes, "waiting": len(self._waiting)}

    def wait_until_sent(self, within_s: float) -> None:
        """Wait until no notice is queued or being sent, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._is_sending), max(0.0, within_s))

    def end(self, within_s: float) -> None:
        """Deliver the queued notices, without long pauses, and stop."""
        with self._changed:
            self._ending.set()
            self._changed.notify()
        self._thread.join(within_s)

    def _deliver(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ending.is_set():
                    self._changed.wait()
                if not self._waiting:
                    return
                said = self._waiting.popleft()
                self._is_sending = True
            self._try(said)
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()

    def _try(self, said: Mapping[str, object]) -> None:
        problem = self._send_patiently(json.dumps(said, default=str).encode())
        self._outcomes["failed" if problem else "sent"] += 1
        if problem:
            self._tell("notification given up", {"to": self.name, "about": said["event"], "reason": problem})

    def _send_patiently(self, body: bytes) -> str:
        """Send a notice, with several tries. Return the error of the last try; "" if the notice was delivered. While
        the process ends there is only one more try."""
        problem = ""
        for pause_s in (*self._pauses_s, 0.0):
            problem = self._send(body)
            if not problem:
                return ""
            if self._ending.wait(pause_s):
                return self._send(body)
        return problem

    def _send(self, body: bytes) -> str:
        """Send a notice once. Return the error without the URL; "" if the notice was delivered."""
        try:
            if isinstance(self.settings, NotifierSettings):
                notifier_of(self.settings).send(self.settings, json.loads(body))
                return ""
            if self.settings.command is not None:
                return _run(self.settings.command, body)
            if self.settings.file is not None:
                return _write(self.settings.file, body)
            url = self.settings.webhook or ""
            return _post(secret(url) or "" if is_reference(url) else url, body)
        except CdcflowError as error:
            return str(error).split("\n")[0]
        except Exception as error:  # noqa: BLE001  the thread must continue; the text may hold the URL
            return type(error).__name__


def _kind_of(settings: ReceiverSettings) -> str:
    if isinstance(settings, NotifierSettings):
        return settings.kind
    if settings.file is not None:
        return "file"
    return "webhook" if settings.command is None else "command"


def _post(url: str, body: bytes) -> str:
    if not url.startswith(("http://", "https://")):
        return "the text of the reference is not an http URL"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310  checked above
            answer.read(1)
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}"
    except urllib.error.URLError as error:
        return type(error.reason).__name__ if isinstance(error.reason, BaseException) else "no answer"
    return ""


def _run(command: Sequence[str], body: bytes) -> str:
    try:
        done = subprocess.run(  # noqa: S603  the operator's own command, without a shell
            command,
            input=body,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {ANSWER_WITHIN_S:g} s"
    except OSError as error:
        return f"it cannot be run: {error.strerror}"
    return "" if done.returncode == 0 else f"it ended with {done.returncode}"


def _write(file: Path, body: bytes) -> str:
    """Replace the file as a whole, so that a program that reads it sees this object or the previous one. Return the
    error; "" if it was written."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as opened:
            opened.write(body + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return f"{file} cannot be written: {error.strerror}"
    return ""


class CutNotifier:
    """Sends receivers each published cut, in the process that merges. `tell` gets an event if one cannot be sent."""

    def __init__(self, receivers: Sequence[ReceiverSettings], tell: OnEvent, *, pauses_s: Sequence[float]) -> None:
        self._receivers = [
            _Receiver(f"{_kind_of(settings)} {number}", settings, tell, pauses_s, {})
            for number, settings in enumerate(receivers, 1)
            if CUT_PUBLISHED in settings.on
        ]

    def put(self, notice: Notice) -> None:
        for receiver in self._receivers:
            receiver.put(notice)

    def wait_until_sent(self, within_s: float) -> None:
        """Wait until each notice is sent, or has failed, or the time is over."""
        deadline = time.monotonic() + within_s
        for receiver in self._receivers:
            receiver.wait_until_sent(deadline - time.monotonic())

    def end(self) -> None:
        """Wait some seconds until the last notices are sent, then stop."""
        deadline = time.monotonic() + LAST_WORD_S
        for receiver in self._receivers:
            receiver.end(max(0.1, deadline - time.monotonic()))


class Notifier:
    """Polls the status every few seconds, and sends receivers the notices that they subscribed to.

    `use` sets the receivers, from any thread; `end` sends each its last notice.
    """

    def __init__(
        self,
        status: StatusOf,
        tell: OnEvent,
        *,
        look_every_s: float = LOOK_EVERY_S,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._status = status
        self._tell = tell
        self._look_every_s = look_every_s
        self._pauses_s = pauses_s
        self._receivers: tuple[_Receiver, ...] = ()
        self._over = threading.Event()
        self._looking: threading.Thread | None = None

    def use(self, receivers: Sequence[ReceiverSettings], tables: Tables) -> None:
        """Replace the receivers.

        A receiver that stays keeps its state; a new one gets no notice about tables that are already read in `tables`
        (as in a status). A removed one gets its queued notices, and no notice of the end.
        """
        before = list(self._receivers)
        self._receivers = tuple(self._receiver(n, r, before, tables) for n, r in enumerate(receivers, 1))
        for gone in before:
            threading.Thread(target=gone.end, args=(LAST_WORD_S,), name="notify-end", daemon=True).start()
        if self._receivers and self._looking is None:
            self._looking = threading.Thread(target=self._look, name="notify", daemon=True)
            self._looking.start()

    def _receiver(self, number: int, settings: ReceiverSettings, before: list[_Receiver], tables: Tables) -> _Receiver:
        same = next((one for one in before if one.settings == settings), None)
        if same is not None:
            before.remove(same)
            return same
        return _Receiver(f"{_kind_of(settings)} {number}", settings, self._tell, self._pauses_s, tables)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many notices each receiver got, by a name of the receiver without its URL."""
        return {receiver.name: receiver.counts() for receiver in self._receivers}

    def end(self, ended: BaseException | None, *, is_standby: bool = False) -> None:
        """Send the notice of the end of the capture, or of a standby, and of its cause, within some seconds."""
        self._over.set()
        deadline = time.monotonic() + LAST_WORD_S
        receivers, self._receivers = self._receivers, ()
        for receiver in receivers:
            receiver.put(of_the_end(ended, is_standby=is_standby))
        for receiver in receivers:
            receiver.end(max(0.1, deadline - time.monotonic()))

    def _look(self) -> None:
        while not self._over.wait(self._look_every_s):
            with contextlib.suppress(CdcflowError):
                now = self._status()
                for receiver in self._receivers:
                    receiver.look(now)
