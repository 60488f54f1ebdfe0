"""Changes of several tables at a fixed pace, whatever the answers take (open loop): one transaction every 10 ms.

Argument: `dsn`, `tables` (how many), `rows` (that each has), `rate` (changes a second in all tables), `seconds`,
`times` (a file with one line `number nanoseconds` per transaction, the time at which the commit's answer arrived),
`first` (the number of the first transaction). SIGTERM ends it in good order.

A transaction changes every table: it inserts a row whose id shows the transaction's number, deletes the row of the
transaction a hundred before it, and updates rows at random, half of them among the latest hundredth.
"""

from __future__ import annotations

import signal
import threading
import time

import psycopg

from bench.children.usage import Clock, given, tell

PER_SECOND = 100
"""Transactions a second, at rates that give each table at least three changes in one."""
FIRST = 1 << 40
"""The id of the row that transaction 0 inserts: far after those of the rows that the tables begin with."""

CREATE = """
CREATE OR REPLACE FUNCTION fresh(number bigint, updates int, tables int, there bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE keys bigint[]; changes bigint = 0; more bigint;
BEGIN
  FOR t IN 0..tables - 1 LOOP
    SELECT array_agg(DISTINCT CASE i % 2 WHEN 0 THEN 1 + floor(random() * there)::bigint
                              ELSE there - floor(random() * (there / 100))::bigint END)
      INTO keys FROM generate_series(1, updates) i;
    EXECUTE format('UPDATE t%s SET qty = qty + 1, at = clock_timestamp() WHERE id = ANY($1)', t) USING keys;
    GET DIAGNOSTICS more = ROW_COUNT;
    changes = changes + more + 1;
    EXECUTE format('INSERT INTO t%s VALUES ($1, 0, 0, clock_timestamp(), ''new'', ''row'')', t) USING number;
    EXECUTE format('DELETE FROM t%s WHERE id = $1', t) USING number - 100;
    GET DIAGNOSTICS more = ROW_COUNT;
    changes = changes + more;
  END LOOP;
  RETURN changes;
END $$
"""


def main() -> None:
    asked = given()
    first = int(str(asked["first"]))
    rate, seconds, tables = float(str(asked["rate"])), float(str(asked["seconds"])), int(str(asked["tables"]))
    each = min(PER_SECOND, rate / (3 * tables))
    updates = max(1, round(rate / each / tables) - 2)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    times: list[tuple[int, int]] = []
    with psycopg.connect(str(asked["dsn"]), autocommit=True) as connection:
        clock, began = Clock(), time.monotonic()
        number = changes = 0
        while not ended.is_set() and (due := number / each) < seconds:
            if (early := began + due - time.monotonic()) > 0:
                time.sleep(early)
            changed = connection.execute(
                "SELECT fresh(%s, %s, %s, %s)", (first + number, updates, tables, asked["rows"]), prepare=True
            ).fetchone()
            times.append((first + number, time.monotonic_ns()))
            assert changed is not None
            changes += changed[0]
            number += 1
        figures = clock.stop()
    with open(str(asked["times"]), "w") as file:
        file.writelines(f"{number} {ns}\n" for number, ns in times)
    tell({**figures, "rows": number, "changes": changes, "late_s": time.monotonic() - began - number / each})


if __name__ == "__main__":
    main()
