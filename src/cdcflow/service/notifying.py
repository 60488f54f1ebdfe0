"""Tells receivers of notices, by HTTP or by a command, without ever holding the capture up.

    status ──(a thread looks every few seconds)──▶ notices ──▶ a queue and a thread for each receiver ──▶ the receiver

A receiver that does not answer is tried again a few times, then given up, with an event. A queue that is full loses
its oldest notice. At the end the last notice has a few seconds. URLs are secrets: no event holds one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cdcflow.config import Notify, secret
from cdcflow.config.references import is_reference
from cdcflow.errors import CdcflowError
from cdcflow.service.notices import Notice, Noticing, Tables, of_the_end

LOOK_EVERY_S = 5.0
ANSWER_WITHIN_S = 5.0
PAUSES_S = (1.0, 5.0, 20.0)
LAST_WORD_S = 3.0
WAITING_MAX = 100

OnEvent = Callable[[str, Mapping[str, object]], None]
StatusOf = Callable[[], Mapping[str, Any]]


class _Receiver:
    """One receiver with its queue and its thread."""

    def __init__(self, name: str, settings: Notify, tell: OnEvent, pauses_s: Sequence[float], tables: Tables) -> None:
        self.name = name
        self._settings = settings
        self._tell = tell
        self._pauses_s = pauses_s
        self._noticing = Noticing(settings.lag_over, settings.headroom_under, tables)
        self._waiting: deque[Mapping[str, object]] = deque(maxlen=WAITING_MAX)
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._deliver, name=f"notify-{name}", daemon=True)
        self._thread.start()

    def look(self, status: Mapping[str, Any]) -> None:
        for notice in self._noticing.of(status):
            self.put(notice)

    def put(self, notice: Notice) -> None:
        if notice.event not in self._settings.on:
            return
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        said = {"event": notice.event, "active": notice.active, "text": notice.text, "at": at, **notice.fields}
        with self._changed:
            self._waiting.append({**said, "host": socket.gethostname()})
            self._changed.notify()

    def end(self, within_s: float) -> None:
        """Deliver what waits, without long pauses, and stop."""
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
            self._try(said)

    def _try(self, said: Mapping[str, object]) -> None:
        problem = ""
        for pause_s in (*self._pauses_s, 0.0):
            problem = self._sent(json.dumps(said, default=str).encode())
            if not problem:
                return
            if self._ending.wait(pause_s):
                break
        else:
            self._tell("notification given up", {"to": self.name, "about": said["event"], "reason": problem})
            return
        # The process ends: once more, and no longer.
        if problem := self._sent(json.dumps(said, default=str).encode()):
            self._tell("notification given up", {"to": self.name, "about": said["event"], "reason": problem})

    def _sent(self, body: bytes) -> str:
        """ "" when it arrived, else what went wrong, without the URL."""
        try:
            if self._settings.command is not None:
                return _run(self._settings.command, body)
            url = self._settings.webhook or ""
            return _post(secret(url) or "" if is_reference(url) else url, body)
        except CdcflowError as error:
            return str(error).split("\n")[0]
        except Exception as error:  # noqa: BLE001  whatever it is: the thread goes on, and its text may hold the URL
            return type(error).__name__


def _post(url: str, body: bytes) -> str:
    if not url.startswith(("http://", "https://")):
        return "the text of the reference is not an http URL"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310  looked at above
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


@contextlib.contextmanager
def notifying(
    receivers: Sequence[Notify],
    status: StatusOf,
    tell: OnEvent,
    *,
    tables: Tables | None = None,
    look_every_s: float = LOOK_EVERY_S,
    pauses_s: Sequence[float] = PAUSES_S,
) -> Iterator[None]:
    """Notify while the block runs, and of its end. `tables`: as the log had them before, so that what was read then is
    no news."""
    made = [
        _Receiver(f"{'webhook' if r.command is None else 'command'} {n}", r, tell, pauses_s, tables or {})
        for n, r in enumerate(receivers, 1)
    ]
    over = threading.Event()

    def look() -> None:
        while not over.wait(look_every_s):
            with contextlib.suppress(CdcflowError):
                now = status()
                for receiver in made:
                    receiver.look(now)

    looking = threading.Thread(target=look, name="notify", daemon=True)
    if made:
        looking.start()
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
        raise
    finally:
        over.set()
        deadline = time.monotonic() + LAST_WORD_S
        for receiver in made:
            receiver.put(of_the_end(ended))
        for receiver in made:
            receiver.end(max(0.1, deadline - time.monotonic()))
