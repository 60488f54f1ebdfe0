"""MySQL's and MariaDB's tests, a few at a time: each batch has a server, a daemon and a log."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pymysql
from tests.ddlfuzz.execute import Failure
from tests.servers.mysql import MySQLServer
from tests.suites.fetch import tests_of
from tests.suites.follower import MODES, Follower
from tests.suites.mtr.interpreter import Interpreter, Limits, Ran
from tests.suites.mtr.refused import is_refused
from tests.suites.mtr.sessions import Sessions
from tests.suites.onmysql import OnSuite
from tests.suites.report import Report, Wanted

from cdcflow.demo.servers.mysql import Flavor

RELEASES = {"mariadb": "bookworm", "mysql": "sid"}
"""The distribution's release of the suite: that of the tested server."""
SUITES = (
    *("innodb", "parts", "gcol", "vcol", "json", "jp", "engines", "gis", "innodb_gis", "versioning", "period"),
    *("sql_sequence", "funcs_1", "innodb_zip", "binlog", "innodb_fts", "collations"),
)
FOLDERS = ("main", "t", *(f"suite/{name}" for name in SUITES))
"""Those that change tables which a capture can follow. Excluded: replication, clusters, plugins."""
TESTS_PER_LOG = 6
LIMITS = Limits(seconds=6, statements=3000)


def run_tests(flavor: Flavor, wanted: Wanted) -> Report:
    """Run tests in random order, drawn from the seed, until the time is over."""
    root = tests_of(flavor, RELEASES[flavor])
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.test"))]
    dice = random.Random(wanted.seed)
    dice.shuffle(files)
    files = [file for file in files if not wanted.tests or file.name in wanted.tests]
    until = time.monotonic() + wanted.seconds
    report = Report(flavor)
    while files and time.monotonic() < until:
        mode = wanted.mode or dice.choice(MODES)
        batch, files = files[:TESTS_PER_LOG], files[TESTS_PER_LOG:]
        # A server for each batch: files, users and settings that a test leaves in it reach no other batch.
        with MySQLServer(flavor, {"default_storage_engine": "InnoDB"}) as server:
            server.execute("CREATE DATABASE test", "CREATE TABLE test.captured_from_the_start (id int PRIMARY KEY)")
            _run_batch(server, root, batch, mode, dice, report)
    return report


def _run_batch(
    server: MySQLServer, root: Path, files: Sequence[Path], mode: str, dice: random.Random, report: Report
) -> None:
    on = OnSuite(server)
    follower = Follower(server.flavor, on, mode, dice)
    follower.start()
    try:
        for file in files:
            began, name = time.monotonic(), f"{file.relative_to(root)} {mode}"
            try:
                ran = _run_test(server, root, file, follower)
                on.drop_discarded()
                follower.compare()
            except Failure as found:
                report.take(follower)
                report.failed(name, f"{found.sort}: {found}")
                break
            except (pymysql.err.MySQLError, OSError) as error:
                if _answers(server):
                    report.failed(name, f"broken: {error}")
                else:
                    report.counts["servers that ended"] += 1
                    report.passed(name, f"the server does not answer any longer: {error}")
                break
            report.counts["tests" if ran.counts["run"] else "tests that ran nothing"] += 1
            report.counts += ran.counts
            report.passed(name, f"{time.monotonic() - began:.1f} s {dict(ran.counts)} {ran.ended}")
            report.take(follower)
    finally:
        follower.close()
        on.close()


def _answers(server: MySQLServer) -> bool:
    try:
        server.connect(None).close()
    except (pymysql.err.MySQLError, OSError):
        return False
    return True


def _run_test(server: MySQLServer, root: Path, file: Path, follower: Follower) -> Ran:
    sessions = Sessions({"host": "127.0.0.1", "port": server.port, "user": "root"})
    roots = (root, file.parent, file.parent.parent)
    try:
        test = Interpreter(sessions, roots, is_refused=is_refused, before=follower.before, limits=LIMITS)
        return test.run(file)
    finally:
        sessions.close_all()


__all__ = ["run_tests"]
