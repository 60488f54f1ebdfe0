"""The connections of one test, by the names that the test gives them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

import pymysql
from pymysql.constants import CLIENT

OPENING = ("SET SESSION lock_wait_timeout = 3", "SET SESSION innodb_lock_wait_timeout = 2")
READ_TIMEOUT_S = 30
GRACE_S = 5


class Sessions:
    """Connections to one server. `default` is open from the start; the test is in `test` by default."""

    def __init__(self, address: Mapping[str, Any], database: str = "test") -> None:
        self._address = address
        self._open: dict[str, Session] = {"default": Session(address, database=database)}
        self._now = "default"
        self._database = database

    @property
    def now(self) -> Session:
        return self._open[self._now]

    @property
    def name(self) -> str:
        return self._now

    def connect(self, name: str, user: str, password: str, database: str) -> None:
        """Open another connection and continue with it. One that the server refuses leaves the test where it is."""
        address = dict(self._address)
        if user and user != "root":
            address.update(user=user, password=password)
        with contextlib.suppress(pymysql.err.MySQLError, OSError):
            self.close(name)
            self._open[name] = Session(address, database=database or self._database)
            self._now = name

    def switch(self, name: str) -> None:
        if name in self._open:
            self._now = name

    def close(self, name: str) -> None:
        session = self._open.pop(name, None)
        if session is not None:
            session.close()
        if name == self._now or "default" not in self._open:
            self._now = "default"
            if "default" not in self._open:
                self._open["default"] = Session(self._address, database=self._database)

    def close_all(self) -> None:
        """Close all, and wait until the server has executed what they sent: it runs several statements to their end.

        What takes long is killed: some tests start a procedure that only another part of the test ends.
        """
        left = {session.number for session in self._open.values()}
        for session in self._open.values():
            session.close()
        watching = Session(self._address, database=self._database)
        if not watching.sees_the_end_of(left, GRACE_S):
            for number in left:
                watching.execute(f"KILL {number}")
            watching.sees_the_end_of(left, READ_TIMEOUT_S)
        watching.close()


class Session:
    """One connection. A statement may be sent by one call, and its end awaited by another (`send`, `reap`)."""

    def __init__(self, address: Mapping[str, Any], database: str) -> None:
        self._connection: Any = pymysql.connect(
            **address,
            client_flag=CLIENT.MULTI_STATEMENTS,
            autocommit=None,
            read_timeout=READ_TIMEOUT_S,
            write_timeout=READ_TIMEOUT_S,
            # Reading certificates took half of a run's time. Only a password needs TLS.
            ssl_disabled=not address.get("password"),
        )
        # Results are bytes of any character set, and only a few texts of them are needed.
        self._connection.use_unicode, self._connection.decoders = False, {}
        for statement in OPENING:
            self._connection.query(statement)
        with contextlib.suppress(pymysql.err.MySQLError):
            self._connection.query(f"USE `{database}`")
        self._sent: threading.Thread | None = None
        self.number: int = self._connection.thread_id()

    def execute(self, text: str) -> bool:
        """Run a statement and read its result; False: the server refused it, or did not answer in time."""
        self.reap()
        return self._run(text)

    def send(self, text: str) -> None:
        self.reap()
        self._sent = threading.Thread(target=self._run, args=(text,), daemon=True)
        self._sent.start()

    def reap(self) -> None:
        if self._sent is not None:
            self._sent.join(READ_TIMEOUT_S)
            self._sent = None

    def rows(self, query: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        """The names of the columns and the rows of a query as latin1 texts; nothing where the server refuses it."""
        self.reap()
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query.encode("latin1", "replace"))
                names = [_text(column[0]) or "" for column in cursor.description or ()]
                return names, [tuple(map(_text, row)) for row in cursor.fetchall()]
        except (pymysql.err.Error, OSError, UnicodeError, ValueError):
            return [], []

    def sees_the_end_of(self, connections: Collection[int], patience_s: float) -> bool:
        """Wait until the server has closed these connections; False: it has not."""
        until = time.monotonic() + patience_s
        while set(connections) & {int(row[0] or 0) for row in self.rows("SHOW PROCESSLIST")[1]}:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()

    def _run(self, text: str) -> bool:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(text.encode("latin1", "replace"))
                while cursor.nextset():
                    pass
        except (pymysql.err.Error, OSError, UnicodeError, ValueError, AttributeError):
            return False  # PyMySQL meets None where another thread closed the connection
        return True


def _text(value: object) -> str | None:
    if value is None:
        return None
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


__all__ = ["Session", "Sessions"]
