"""PostgreSQL's regression suite once, in the order of its schedule; tables are compared after each group of files."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import psycopg
from tests.ddlfuzz.execute import Failure
from tests.servers.postgres import PostgresServer
from tests.suites.fetch import regress
from tests.suites.follower import MODES, Follower
from tests.suites.onpostgres import OnRegression
from tests.suites.regress import Suite
from tests.suites.report import Report, Wanted

VERSION, RELEASE = "18", "sid"
"""The suite of the server that is tested, and the distribution's release that has its source."""
FILES_PER_COMPARISON = 10


def run_regression(wanted: Wanted) -> Report:
    """Run the suite until it or the time is over."""
    dice = random.Random(wanted.seed)
    mode = wanted.mode or dice.choice(MODES)
    until = time.monotonic() + wanted.seconds
    report = Report("postgres")
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="cdcflow-regress-") as room:
        suite = Suite(regress(VERSION, RELEASE), Path(room), server)
        on = OnRegression(server)
        follower = Follower("postgres", on, mode, dice)
        follower.start()
        try:
            for group in suite.groups():
                if time.monotonic() < until:
                    dice.shuffle(group)
                    _run_group(suite, group, follower, report)
        finally:
            follower.close()
            on.close()
    return report


def _run_group(suite: Suite, group: list[Path], follower: Follower, report: Report) -> None:
    for begin in range(0, len(group), FILES_PER_COMPARISON):
        files = group[begin : begin + FILES_PER_COMPARISON]
        name = f"{' '.join(file.stem for file in files)} {follower.mode}"
        began = time.monotonic()
        try:
            for file in files:
                report.counts["lines"] += suite.run(file, follower.in_between)
                report.counts["files"] += 1
            follower.compare()
            report.passed(name, f"{time.monotonic() - began:.1f} s, {follower.compared} tables")
        except (Failure, psycopg.Error) as found:
            report.failed(name, f"{type(found).__name__}: {found}")
        report.take(follower)


__all__ = ["run_regression"]
