"""`make bench`: how near capture and backfill come to what the server itself can deliver.

    drain      a backlog in a replication slot, read to nowhere (psycopg.pq, and pg_recvlogical -f /dev/null), then the
               same slot's backlog captured into the fsynced log
    backfill   COPY (FORMAT binary) of the table to nowhere, then a one-shot backfill into the log, sealed

Both sides use the same TCP connection settings. A round whose log fails its check prints nothing and stops the run.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import harness
import psycopg
from psycopg import pq

from cdcflow import wiring
from cdcflow.changelog import reader
from cdcflow.changelog.checking import check
from cdcflow.config import Config
from cdcflow.testing.postgres import PostgresServer

TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text, note text, amount numeric(10,2),
                     placed timestamptz NOT NULL DEFAULT now())
"""
INSERT = """
INSERT INTO orders SELECT i, i % 1000, 'open', 'order number ' || i, (i % 100000) / 100.0
FROM generate_series({first}, {last}) i
"""


def config(server: PostgresServer, directory: Path, **source: object) -> Config:
    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": server.url(), "tables": ["public.*"], **source},
            "log": {"path": str(directory / "log")},
        }
    )


def capture_until(settings: Config, lsn: int) -> float:
    """Seconds from before the first connection until everything up to `lsn` is durable in the log."""
    running = wiring.capture(settings, on_event=lambda _event, _fields: None)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            running.run()
        except BaseException as error:  # noqa: BLE001 - shown below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run)
    begun = time.perf_counter()
    thread.start()
    while thread.is_alive():
        position = running.status().get("position")
        if position is not None and _lsn(str(position)) >= lsn:
            break
        time.sleep(0.002)
    seconds = time.perf_counter() - begun
    running.stop()
    thread.join()
    if failed:
        raise failed[0]
    return seconds


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def drain_to_nowhere(server: PostgresServer, slot: str, publication: str, lsn: int) -> tuple[float, int]:
    """Read the slot through psycopg.pq up to `lsn` without decoding or acknowledging: seconds, and row changes."""
    begun, rows, end = time.perf_counter(), 0, 0
    conn = pq.PGconn.connect(f"{server.url()}?replication=database".encode())
    options = f"proto_version '4', publication_names '{publication}', messages 'true', binary 'true', streaming 'on'"
    conn.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
    while end < lsn:
        _, message = conn.get_copy_data(0)
        if message[0:1] == b"w":
            kind = message[25]
            rows += kind in b"IUD"
            if kind == 67:  # Commit: flags, commit LSN, end LSN
                end = int.from_bytes(message[35:43], "big")
    seconds = time.perf_counter() - begun
    conn.finish()
    return seconds, rows


def recvlogical(server: PostgresServer, slot: str, publication: str, lsn: str) -> float:
    """Seconds that `pg_recvlogical -f /dev/null` takes to read a copy of the slot up to `lsn`."""
    with server.connect(autocommit=True) as conn:
        conn.execute("SELECT pg_copy_logical_replication_slot(%s, 'bench_copy')", (slot,))
        begun = time.perf_counter()
        subprocess.run(
            [
                server.bin_directory / "pg_recvlogical", "-d", server.url(), "-S", "bench_copy", "--start",
                "-f", "/dev/null", "-o", "proto_version=4", "-o", f"publication_names={publication}",
                "-o", "binary=true", "-o", "messages=true", "-E", lsn, "--no-loop",
            ],
            check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        conn.execute("SELECT pg_drop_replication_slot('bench_copy')")
    return seconds


def bench_drain(rounds: int, rows: int, per_transaction: int) -> list[harness.Result]:
    captured, limits, peers = [], [], []
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        settings = config(server, Path(folder))
        with server.connect(autocommit=True) as conn:
            conn.execute(TABLE)
        wiring.capture(settings, once=True).run()  # makes slot and publication; the table is empty
        with server.connect(autocommit=True) as conn:
            slot = conn.execute("SELECT slot_name FROM pg_replication_slots").fetchone()[0]
            publication = conn.execute("SELECT pubname FROM pg_publication").fetchone()[0]
            for number in range(rounds + 1):
                first = number * rows + 1
                conn.execute(
                    f"""DO $$ BEGIN FOR i IN 0..{rows // per_transaction - 1} LOOP
                    INSERT INTO orders SELECT j, j % 1000, 'open', 'order number ' || j, (j % 100000) / 100.0
                    FROM generate_series({first} + i * {per_transaction}, {first} + (i + 1) * {per_transaction} - 1) j;
                    COMMIT; END LOOP; END $$"""
                )
                text = str(conn.execute("SELECT pg_current_wal_flush_lsn()").fetchone()[0])
                end = str(conn.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')").fetchone()[0])
                lsn = _lsn(end)
                conn.execute("SELECT pg_switch_wal()")
                print(f"  backlog of {rows:,} made", flush=True)
                drained, seen = drain_to_nowhere(server, slot, publication, lsn)
                assert seen == rows, f"drained {seen} of {rows} changes"
                received = recvlogical(server, slot, publication, text)
                took = capture_until(settings, lsn)
                print(f"  drained {drained:.2f} s, pg_recvlogical {received:.2f} s, captured {took:.2f} s", flush=True)
                if number:  # the first round warms up
                    limits.append(rows / drained)
                    peers.append(rows / received)
                    captured.append(rows / took)
        _verified(Path(folder) / "log", rows * (rounds + 1))
    case = f"{rows:,} inserts, {per_transaction} a transaction, 6 columns, TCP"
    return [
        harness.result("drain", case, "rows/s", captured, limits, "psycopg.pq to nowhere"),
        harness.result("drain", case, "rows/s", captured, peers, "pg_recvlogical -f /dev/null"),
    ]


def bench_backfill(rounds: int, rows: int) -> list[harness.Result]:
    read, limits = [], []
    with PostgresServer() as server, server.connect(autocommit=True) as conn:
        conn.execute(TABLE)
        conn.execute(INSERT.format(first=1, last=rows))
        conn.execute("VACUUM (FREEZE, ANALYZE) orders")
        for number in range(rounds + 1):
            copied = copy_to_nowhere(server)
            with tempfile.TemporaryDirectory() as folder:
                reading = wiring.capture(
                    config(server, Path(folder)), backfill=(), once=True, on_event=lambda _event, _fields: None
                )
                begun = time.perf_counter()
                reading.run()
                took = time.perf_counter() - begun
                _verified(Path(folder) / "log", rows)
            for (slot,) in conn.execute("SELECT slot_name FROM pg_replication_slots").fetchall():
                conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            if number:
                limits.append(rows / copied)
                read.append(rows / took)
    case = f"{rows:,} rows, 6 columns, TCP, into sealed Parquet"
    return [harness.result("backfill", case, "rows/s", read, limits, "COPY BINARY to nowhere")]


def copy_to_nowhere(server: PostgresServer) -> float:
    with psycopg.connect(server.url()) as conn, conn.cursor() as cursor:
        begun = time.perf_counter()
        with cursor.copy("COPY orders TO STDOUT (FORMAT binary)") as copy:
            for _ in copy:
                pass
        return time.perf_counter() - begun


def _verified(log: Path, rows: int) -> None:
    report = check(log)
    assert report.is_whole, f"the log does not hold: {report.faults}"
    checkpoint = reader.newest_checkpoint(log)
    assert checkpoint is not None
    assert checkpoint.next_offset - 1 == rows, f"{checkpoint.next_offset - 1} rows in the log, {rows} expected"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", choices=["drain", "backfill"])
    options = parser.parse_args()
    results: list[harness.Result] = []
    if options.only != "backfill":
        for per_transaction in (1, 100):
            results += bench_drain(options.rounds, options.rows, per_transaction)
    if options.only != "drain":
        results += bench_backfill(options.rounds, 2 * options.rows)
    harness.report(results)


if __name__ == "__main__":
    main()
