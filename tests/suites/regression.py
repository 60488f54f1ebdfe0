"""PostgreSQL's regression suite once, in the order of its schedule; tables are compared after some of its files."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests.ddlfuzz.execute import Failure
from tests.servers import debian
from tests.servers.postgres import PostgresServer, binaries
from tests.servers.releases import RELEASES, NotToBeHad, environment
from tests.suites.fetch import regress
from tests.suites.follower import MODES, Follower
from tests.suites.onpostgres import OnRegression
from tests.suites.regress import Suite
from tests.suites.report import Report, Wanted

USUAL = "18"
FILES_PER_COMPARISON = 10


def run_regression(wanted: Wanted) -> Report:
    """Run the suite until it or the time is over."""
    dice = random.Random(wanted.seed)
    mode = wanted.mode or dice.choice(MODES)
    until = time.monotonic() + wanted.seconds
    report = Report(f"postgres {wanted.release}" if wanted.release else "postgres")
    with (
        PostgresServer(_programs(wanted.release)) as server,
        tempfile.TemporaryDirectory(prefix="cdcflow-regress-") as room,
    ):
        suite = Suite(_files(str(server.version // 10000)), Path(room), server)
        on = OnRegression(server)
        follower = Follower("postgres", on, mode, dice)
        follower.start()
        try:
            for files in _batches(suite, wanted, dice):
                if time.monotonic() < until:
                    _run_files(suite, files, follower, report)
        finally:
            follower.close()
            on.close()
    return report


def _programs(release: str | None) -> Path | None:
    """The directory of a major version's programs: the system's own, or otherwise that of the list of releases."""
    if release is None:
        return None
    if found := binaries().get(f"system{release}"):
        return found
    listed = next((r for r in RELEASES if r.kind == "postgres" and r.version == release), None)
    if listed is None:
        raise NotToBeHad(f"PostgreSQL {release} is not in the list of releases")
    return Path(environment(listed)["CDCFLOW_POSTGRES"])


def _files(version: str) -> Path:
    """The suite of a major version; where the distribution does not have its source, the usual one: the server refuses
    the parts that it does not support."""
    try:
        return regress(version)
    except debian.NotToBeHad as error:
        print(f"  postgres {version}: the suite of {USUAL}, because {error}", flush=True)
        return regress(USUAL)


def _is_wanted(file: Path, wanted: Wanted) -> bool:
    return not wanted.tests or file.name in wanted.tests or file.stem == "test_setup"


def _batches(suite: Suite, wanted: Wanted, dice: random.Random) -> Iterator[list[Path]]:
    """The files in the order of the schedule, with those of a group in any order: this many per comparison."""
    files: list[Path] = []
    for group in suite.groups():
        dice.shuffle(group)
        files += [file for file in group if _is_wanted(file, wanted)]
        while len(files) >= FILES_PER_COMPARISON:
            yield files[:FILES_PER_COMPARISON]
            files = files[FILES_PER_COMPARISON:]
    if files:
        yield files


def _run_files(suite: Suite, files: list[Path], follower: Follower, report: Report) -> None:
    name = f"{' '.join(file.stem for file in files)} {follower.mode}"
    began = time.monotonic()
    for file in files:
        _run_file(suite, file, follower, report)
    try:
        follower.compare()
        report.passed(name, f"{time.monotonic() - began:.1f} s, {follower.compared} tables")
    except (Failure, psycopg.Error) as found:
        report.failed(name, f"{type(found).__name__}: {found}")
    report.take(follower)


def _run_file(suite: Suite, file: Path, follower: Follower, report: Report) -> None:
    """Run a file to its end, also if the daemon could not be started in its middle."""
    failed: list[Failure] = []

    def wait() -> None:
        try:
            if not failed:
                follower.in_between()
                return
        except Failure as found:
            failed.append(found)
        time.sleep(0.05)

    report.counts["lines"] += suite.run(file, wait)
    report.counts["files"] += 1
    for found in failed:
        report.failed(f"{file.stem} {follower.mode}", f"in the middle: {found}")


__all__ = ["run_regression"]
