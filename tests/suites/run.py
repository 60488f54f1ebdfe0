"""The servers' own tests beside a daemon: `make test-suites`.

python tests/suites/run.py --server mariadb --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg
import pymysql
from tests.ddlfuzz.execute import Failure
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer
from tests.suites.beside import MODES, Follower
from tests.suites.fetch import regress, tests_of
from tests.suites.mtr.interpreter import Interpreter, Limits
from tests.suites.mtr.refused import is_refused
from tests.suites.mtr.sessions import Sessions
from tests.suites.onmysql import OnSuite
from tests.suites.onpostgres import OnRegression
from tests.suites.regress import Suite

RELEASES = {"mariadb": "bookworm", "mysql": "sid"}
"""Of which release of the distribution the suite is: the one whose server is tested."""
FOLDERS = {"mariadb": ("main",), "mysql": ("t",)}
SUITES = (
    "innodb",
    "parts",
    "gcol",
    "vcol",
    "json",
    "jp",
    "engines",
    "gis",
    "innodb_gis",
    "versioning",
    "period",
    "sql_sequence",
    "funcs_1",
    "innodb_zip",
    "binlog",
    "heap",
    "maria",
    "innodb_fts",
    "collations",
)
TOGETHER = 6
"""So many tests have one log."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=("mariadb", "mysql", "postgres"), action="append")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--test", action="append", help="only this one: a file's name")
    said = parser.parse_args(arguments)
    failed = 0
    for flavor in said.server or ("mariadb", "mysql", "postgres"):
        failed += run_regress(said) if flavor == "postgres" else _run(flavor, said)
    return 1 if failed else 0


def _run(flavor: str, said: argparse.Namespace) -> int:
    root = tests_of(flavor, RELEASES[flavor])
    files = [f for folder in FOLDERS[flavor] for f in sorted((root / folder).glob("*.test"))]
    files += [f for suite in SUITES for f in sorted((root / "suite" / suite).rglob("*.test"))]
    dice = random.Random(said.seed)
    dice.shuffle(files)
    if said.test:
        files = [f for f in files if f.name in said.test]
    until = time.monotonic() + said.minutes * 60
    totals: Counter[str] = Counter()
    failures = 0
    while files and time.monotonic() < until:
        mode = said.mode or dice.choice(MODES)
        batch, files = files[:TOGETHER], files[TOGETHER:]
        # A server for each batch: what tests leave in it (files, users, settings) is nobody else's trouble.
        with _server(flavor) as server:
            server.execute("CREATE DATABASE test")
            failures += _batch(server, root, batch, mode, dice, totals)
    print(f"{flavor}: {dict(totals)}, {failures} failed", flush=True)
    return failures


def run_regress(said: argparse.Namespace) -> int:
    """PostgreSQL's suite once, in the order of its schedule; tables are compared after each group."""
    dice = random.Random(said.seed)
    mode = said.mode or dice.choice(MODES)
    until = time.monotonic() + said.minutes * 60
    totals: Counter[str] = Counter()
    failed = 0
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="cdcflow-regress-") as room:
        suite = Suite(regress("18", "sid"), Path(room), server)
        on = OnRegression(server)
        follower = Follower("postgres", on, mode, dice)

        def wait() -> None:
            time.sleep(0.05)
            if mode != "running" and dice.random() < 0.02:
                follower.turn()

        follower._start()
        for group in suite.groups():
            dice.shuffle(group)
            began = time.monotonic()
            for file in group:
                totals["lines"] += suite.run(file, wait)
                totals["files"] += 1
            names = " ".join(file.stem for file in group)
            try:
                follower.compare()
                print(f"  {mode} {time.monotonic() - began:.1f} s, {follower.compared} tables: {names}", flush=True)
            except (Failure, psycopg.Error) as found:
                failed += 1
                print(f"── postgres {mode} {names}: {type(found).__name__}: {found}", flush=True)
            for stop in follower.outcome.stops:
                print(f"   stop: {stop[:400]}")
            totals["stops"] += len(follower.outcome.stops)
            totals["compared"] += follower.compared
            follower.outcome.stops.clear()
            follower.compared = 0
            if time.monotonic() > until:
                break
        follower.close()
        on.close()
    print(f"postgres: {dict(totals)}, {failed} failed", flush=True)
    return failed


def _server(flavor: str) -> MySQLServer:
    return MySQLServer("mariadb" if flavor == "mariadb" else "mysql", {"default_storage_engine": "InnoDB"})


def _batch(
    server: MySQLServer, root: Path, files: Sequence[Path], mode: str, dice: random.Random, totals: Counter[str]
) -> int:
    on = OnSuite(server)
    follower = Follower(server.flavor, on, mode, dice)
    server.execute("CREATE TABLE IF NOT EXISTS test.there_is_always_one (id int PRIMARY KEY)")
    follower._start()
    failed = 0
    try:
        for file in files:
            began = time.monotonic()
            name = file.relative_to(root)
            try:
                sessions = Sessions({"host": "127.0.0.1", "port": server.port, "user": "root"})
                roots = (root, file.parent, file.parent.parent)
                one = Interpreter(
                    sessions, roots, is_refused=is_refused, before=follower.before, limits=Limits(20, 4000)
                )
                ran = one.run(file)
                sessions.close_all()
                follower.compare()
                totals["tests"] += 1
                totals += ran.counts
                print(f"  {name} {mode} {time.monotonic() - began:.1f} s {dict(ran.counts)} {ran.ended}", flush=True)
            except Failure as found:
                failed += 1
                print(f"── {server.flavor} {name} {mode}: {found.sort}: {found}", flush=True)
                for stop in follower.outcome.stops:
                    print(f"   stopped before: {stop[:400]}")
                break
            except (pymysql.err.MySQLError, OSError) as error:
                totals["server gone"] += 1
                print(f"  {name}: the server does not answer: {error}", flush=True)
                break
            finally:
                totals["compared"] += follower.compared
                follower.compared = 0
        totals["stops"] += len(follower.outcome.stops)
        for stop in follower.outcome.stops if not failed else ():
            print(f"   stop: {stop[:300]}")
    finally:
        follower.close()
        on.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
