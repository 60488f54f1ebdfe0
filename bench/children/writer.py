"""The load: single-row transactions at a fixed pace, whatever the answers take (open loop).

Argument: `dsn`, `statement` (an INSERT of the row $1), `first` and `rows` (ids), `rate` (transactions a second; 0: as
many as possible), `connections`, `seconds` (an end in time; 0: no end), `times` (a file with one line `id nanoseconds`
per commit, the time at which the commit's answer arrived). SIGTERM ends it in good order.
"""

from __future__ import annotations

import signal
import threading
import time

from psycopg import pq

from bench.children.usage import Clock, given, tell

_BIGINT = 20


class Lane:
    """One connection's share of the ids: every n-th."""

    def __init__(self, dsn: str, statement: str) -> None:
        self._conn = pq.PGconn.connect(dsn.encode())
        result = self._conn.prepare(b"load", statement.encode(), [_BIGINT])
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise SystemExit(result.error_message.decode())
        self.times: list[tuple[int, int]] = []

    def run(self, ids: range, begun: float, rate: float, seconds: float, ended: threading.Event) -> None:
        execute = self._conn.exec_prepared
        first = ids.start
        for i in ids:
            now = time.monotonic()
            if ended.is_set() or (seconds and now - begun > seconds):
                break
            if rate:
                early = begun + (i - first) / rate - now
                if early > 0:
                    time.sleep(early)
            result = execute(b"load", [str(i).encode()])
            self.times.append((i, time.monotonic_ns()))
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise SystemExit(result.error_message.decode())


def main() -> None:
    asked = given()
    first, rows, lanes = int(str(asked["first"])), int(str(asked["rows"])), int(str(asked["connections"]))
    rate, seconds = float(str(asked["rate"])), float(str(asked["seconds"]))
    opened = [Lane(str(asked["dsn"]), str(asked["statement"])) for _ in range(lanes)]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    clock = Clock()
    begun = time.monotonic()
    threads = [
        threading.Thread(target=lane.run, args=(range(first + n, first + rows, lanes), begun, rate, seconds, ended))
        for n, lane in enumerate(opened)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = clock.stop()
    if asked.get("times"):
        with open(str(asked["times"]), "w") as file:
            for lane in opened:
                file.writelines(f"{i} {ns}\n" for i, ns in lane.times)
    tell({**figures, "rows": sum(len(lane.times) for lane in opened)})


if __name__ == "__main__":
    main()
