"""The whole way on a busy server: a daemon that is killed and started again keeps an exact copy."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.polling import PATIENCE_S, wait_for

from cdcflow.errors import ConfigurationError
from cdcflow.log.read import reader
from cdcflow.model.position import position_text
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition
from cdcflow.testing.folded import folded_log

pytestmark = pytest.mark.mysql


@contextlib.contextmanager
def writing(database: MySQLDatabase) -> Iterator[None]:
    """Two sessions that insert, update, delete and move rows until the block ends."""
    stop = threading.Event()

    def write(number: int) -> None:
        with database.session() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = '{('FULL', 'MINIMAL')[number]}'")
            for n in itertools.count(1):
                if stop.wait(0.005):
                    return
                cursor.execute("INSERT INTO t (a) VALUES ('y'), ('z')")
                cursor.execute(
                    "INSERT INTO u VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE v = v + 1",
                    (n % 50 + 2**63, f"k{number}", n),
                )
                cursor.execute("UPDATE t SET a = concat(a, 'x') WHERE id = %s", (n * 5,))
                if n % 7 == 0:
                    cursor.execute("DELETE FROM t WHERE id = %s", (n,))
                if n % 5 == 0:
                    cursor.execute("UPDATE t SET id = -id WHERE id = %s", (n * 3 + number,))

    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@contextlib.contextmanager
def daemon(config: Path, end: signal.Signals) -> Iterator[None]:
    said = config.with_suffix(".err").open("a+")
    process = subprocess.Popen([sys.executable, "-m", "cdcflow.cli", "run", "--config", str(config)], stderr=said)
    try:
        yield
        assert process.poll() is None, "the daemon ended by itself"
    except BaseException:
        said.seek(0)
        print(said.read()[-6000:])
        raise
    finally:
        process.send_signal(end)
        process.wait(PATIENCE_S)
        said.close()


def progress(log: Path) -> tuple[int, bool, str]:
    """The next offset, whether all tables are read, and the position of the latest cut."""
    with contextlib.suppress(ConfigurationError):  # no log yet
        found = reader.newest_checkpoint(log)
        if found is not None:
            tables: Any = found.progress.get("tables", {})
            read = bool(tables) and all(t["state"] == "done" for t in tables.values())
            return found.next_offset, read, position_text(found.position) or ""
    return 1, False, ""


@pytest.mark.long
@pytest.mark.spread(1)
@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_copy_is_exact_after_a_kill_in_the_backfill(mysql_database: MySQLDatabase, tmp_path: Path, fence: str) -> None:
    """O01, W23, W24: kill -9 while rows are read and others write; then the log holds exactly what the tables hold."""
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, a varchar(50), d datetime(6) DEFAULT CURRENT_TIMESTAMP(6))",
        "CREATE TABLE u (id bigint unsigned, k varchar(20), v decimal(10,2), PRIMARY KEY (k, id))",
        *["INSERT INTO t (a) VALUES " + ", ".join(["('x')"] * 1000)] * 20,
    )
    log, config = tmp_path / "log", tmp_path / "cdcflow.yaml"
    config.write_text(
        f"source:\n  kind: {mysql_database.server.flavor}\n  url: {mysql_database.url}\n"
        f"  tables: [{mysql_database.name}.*]\n  tls: {{mode: off}}\n  fence: {fence}\n  heartbeat: 1s\n"
        f"  backfill: {{chunk_rows_max: 1000}}\nlog: {{path: {log}}}\n"
    )
    with writing(mysql_database):
        with daemon(config, signal.SIGKILL):
            wait_for(lambda: progress(log), lambda found: found[0] > 3000, "rows")
        with daemon(config, signal.SIGTERM):
            wait_for(lambda: progress(log), lambda found: found[1], "all tables to be read")
    file, pos = mysql_database.server.binlog()
    end = BinlogPosition(BinlogFile(file), pos).coordinate
    with daemon(config, signal.SIGTERM):
        wait_for(
            lambda: BinlogPosition.parse(progress(log)[2]).coordinate,
            lambda place: place >= end,
            "the log to reach the end",
        )
    found = {table.name: rows for table, rows in folded_log(log).items()}
    for table in ("t", "u"):
        with mysql_database.session() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            expected = sorted(tuple(zip(names, row, strict=True)) for row in cursor.fetchall())
        kept = sorted(tuple((name, row.values[name]) for name in names) for row in found[table].values())
        assert len(kept) == len(expected)
        assert kept == expected
    checked = [sys.executable, "-m", "cdcflow.cli", "log", "check", "--deep", "--config", str(config)]
    subprocess.run(checked, check=True, capture_output=True)
