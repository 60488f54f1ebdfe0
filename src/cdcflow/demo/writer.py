"""The demo's second process: writes to the source all the time, as several applications would.

    python -m cdcflow.demo.writer URL TRANSACTIONS_PER_SECOND

Every transaction writes related rows: new flights come with their new plane and airline. Between them corrections,
deletes, changed keys, wide values, updates that leave a wide value alone, and transactions that are rolled back, whole
or to a savepoint. SQL that differs between databases is in their sessions' `words`. Prints one JSON line a second; ends
when its stdin is closed or at SIGTERM, so it never outlives the demo.
"""

# ruff: noqa: S608 - every text is the demo's own
from __future__ import annotations

import json
import random
import secrets
import select
import signal
import string
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import FrameType

from cdcflow.demo.databases import DemoSession, StatementResult, Undone
from cdcflow.demo.source_choice import session

Key = tuple[datetime, str, int]
ORIGINS = ("EWR", "JFK", "LGA")
NEW_FLIGHT = 100_000
"""Flights with this number or a higher one were added by the writer."""


class Workload:
    """One session that writes transactions of random kinds."""

    def __init__(self, session: DemoSession, seed: int) -> None:
        self._session = session
        self._words = session.words
        self._random = random.Random(seed)  # noqa: S311 - a demo's dice
        self.done: Counter[str] = Counter()
        self._next = self._last_number()
        self._keys: list[Key] = self._read(
            f"SELECT time_hour, carrier, flight FROM flights {self._words['a twentieth of']}"
        )
        self._wide: list[Key] = self._read(
            "SELECT time_hour, carrier, flight FROM flights WHERE remarks IS NOT NULL LIMIT 2000"
        )
        self._carriers = [row[0] for row in self._execute("SELECT carrier FROM airlines")]
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self.new_flights, 30),
            (self.correct_flights, 30),
            (self.touch_wide_flight, 12),
            (self.write_remarks, 6),
            (self.change_flight_key, 6),
            (self.change_plane_key, 3),
            (self.delete_flights, 6),
            (self.correct_weather, 6),
            (self.undo_half, 3),
        ]

    def _last_number(self) -> int:
        """Return the last number that an earlier writer used in this database: a restarted one must not use it
        again."""
        flight = self._execute("SELECT max(flight) FROM flights").fetchone()[0]
        plane = self._execute("SELECT max(tailnum) FROM planes WHERE left(tailnum, 1) = 'X'").fetchone()[0]
        return max(NEW_FLIGHT, flight or 0, int(plane[1:]) if plane else 0)

    def _read(self, query: str) -> list[Key]:
        return [(row[0], row[1], row[2]) for row in self._execute(query)]

    def _execute(self, statement: str, values: Iterable[object] = ()) -> StatementResult:
        return self._session.execute(statement, values)

    def transaction(self) -> None:
        """Write one transaction of a random kind; one in fifty is rolled back at its end."""
        (kind,) = self._random.choices([k for k, _ in self._kinds], [w for _, w in self._kinds])
        keys, wide, carriers = list(self._keys[-4000:]), list(self._wide[-2000:]), list(self._carriers)
        with self._session.transaction():
            kind()
            undone = self._random.random() < 0.02
            if undone:
                raise Undone
        if undone:
            self._keys, self._wide, self._carriers = keys, wide, carriers
        self.done["rolled back" if undone else kind.__name__] += 1

    # ── kinds of transactions ───────────────────────────────────────────────────────────────────────────────

    def new_flights(self) -> None:
        """Write a plane, now and then an airline, and their flights: like an order with its product."""
        carrier = self._new_airline() if self._random.random() < 0.05 else self._random.choice(self._carriers)
        tailnum = f"X{self._take_number():07d}"
        self._execute(
            "INSERT INTO planes (tailnum, year, manufacturer, model, engines, seats)"
            " VALUES (%s, 2026, 'CDCFLOW', 'C-1', 2, %s)",
            (tailnum, self._random.randrange(50, 300)),
        )
        for _ in range(self._random.randrange(1, 12)):
            self._new_flight(carrier, tailnum)

    def _new_airline(self) -> str:
        carrier = "Z" + "".join(self._random.choices(string.ascii_uppercase, k=4))
        self._execute(
            f"{self._words['insert']} INTO airlines VALUES (%s, %s) {self._words['if it is new']}",
            (carrier, f"Airline {carrier} Ünïted"),
        )
        self._carriers.append(carrier)
        return carrier

    def _new_flight(self, carrier: str, tailnum: str) -> None:
        when = datetime(2014, 1, 1, tzinfo=UTC) + timedelta(hours=self._random.randrange(8000))
        number = self._take_number()
        remarks = remark() if self._random.random() < 0.1 else None
        self._execute(
            "INSERT INTO flights (year, month, day, sched_dep_time, carrier, flight, tailnum, origin, dest, distance,"
            " hour, minute, time_hour, remarks) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 'LAX', 2475, %s, 0, %s, %s)",
            (
                *(when.year, when.month, when.day, when.hour * 100),
                *(carrier, number, tailnum, self._random.choice(ORIGINS)),
                *(when.hour, when, remarks),
            ),
        )
        (self._wide if remarks else self._keys).append((when, carrier, number))

    def correct_flights(self) -> None:
        for key in self._random.sample(self._keys, min(len(self._keys), self._random.randrange(1, 15))):
            self._execute(
                f"UPDATE flights SET dep_delay = %s, arr_delay = coalesce(arr_delay, 0) + 1 WHERE {THIS}",
                (self._random.randrange(-10, 200), *key),
            )

    def touch_wide_flight(self) -> None:
        """Update a flight without its wide value, so that the log does not repeat that value."""
        for key in self._random.sample(self._wide, min(len(self._wide), 3)):
            self._execute(f"UPDATE flights SET air_time = %s WHERE {THIS}", (self._random.randrange(400), *key))

    def write_remarks(self) -> None:
        key = self._random.choice(self._keys)
        text = remark() if self._random.random() < 0.8 else None
        self._execute(f"UPDATE flights SET remarks = %s WHERE {THIS}", (text, *key))

    def change_flight_key(self) -> None:
        """Give a flight another key. Half of the time it is a flight with a wide value, which the log does not
        repeat."""
        keys = self._wide if self._random.random() < 0.5 and self._wide else self._keys
        chosen = self._random.randrange(len(keys))
        when, carrier, _ = keys[chosen]
        number = self._take_number()
        changed = self._execute(f"UPDATE flights SET flight = %s WHERE {THIS}", (number, *keys[chosen]))
        if changed.rowcount:
            keys[chosen] = (when, carrier, number)

    def change_plane_key(self) -> None:
        """Give a plane, and its flights, another number in one transaction."""
        new = f"X{self._take_number():07d}"
        row = self._execute("SELECT max(tailnum) FROM planes WHERE left(tailnum, 1) = 'X'").fetchone()
        if row and row[0]:
            self._execute("UPDATE planes SET tailnum = %s WHERE tailnum = %s", (new, row[0]))
            self._execute(
                f"UPDATE flights SET tailnum = %s WHERE tailnum = %s AND time_hour >= {self._words['2014']}",
                (new, row[0]),
            )

    def delete_flights(self) -> None:
        for _ in range(min(len(self._keys) - 100, self._random.randrange(1, 6))):
            key = self._keys.pop(self._random.randrange(len(self._keys)))
            self._execute(f"DELETE FROM flights WHERE {THIS}", key)

    def correct_weather(self) -> None:
        self._execute(
            f"UPDATE weather SET temp = temp + 0.25, wind_gust = {self._words['no gust']},"
            f" wind_speed = wind_speed / 3 WHERE origin = %s AND time_hour = {self._words['hours into 2013']}",
            (self._random.choice(ORIGINS), self._random.randrange(8000)),
        )

    def undo_half(self) -> None:
        """Write rows before and after a savepoint, and roll back those after it."""
        key = self._random.choice(self._keys)
        self._execute(f"UPDATE flights SET arr_time = 1200 WHERE {THIS}", key)
        with self._session.transaction():
            self._execute(f"UPDATE flights SET arr_time = 1, remarks = 'never' WHERE {THIS}", key)
            raise Undone

    def _take_number(self) -> int:
        self._next += 1
        return self._next


THIS = "time_hour = %s AND carrier = %s AND flight = %s"


def remark() -> str:
    """Return a text of about 8 kB that does not compress."""
    return secrets.token_urlsafe(6144)


def main(url: str, per_second: float) -> None:
    """Write until stdin closes or SIGTERM arrives."""
    stop = told_to_stop()
    with closing(session(url)) as opened:
        write(opened, per_second, stop, lambda: bool(select.select([sys.stdin], [], [], 0)[0]))


def told_to_stop() -> threading.Event:
    """Return an event that is set when SIGTERM arrives. Ctrl-C is handled by the process that started this one."""
    stop = threading.Event()

    def obey(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, obey)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return stop


def write(
    opened: DemoSession, per_second: float, stop: threading.Event, over: Callable[[], bool] = lambda: False
) -> None:
    """Write `per_second` transactions a second until `stop` is set or `over` returns true."""
    writer = Workload(opened, seed=7)
    began = told_at = time.monotonic()
    while not stop.is_set() and not over():
        writer.transaction()
        now = time.monotonic()
        if now - told_at >= 1:
            told_at = now
            _tell(writer)
        ahead = writer.done.total() / per_second - (now - began)
        stop.wait(min(max(0.0, ahead), 0.2))
    _tell(writer)


def _tell(writer: Workload) -> None:
    sys.stdout.write(json.dumps(writer.done) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
