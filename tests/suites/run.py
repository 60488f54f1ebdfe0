"""The servers' own test suites as the workload of a capture: `make test-suites`.

    python tests/suites/run.py --server mariadb --minutes 10 --seed 7
    python tests/suites/run.py --server postgres --release 19 --mode killed
    python tests/suites/run.py --server mysql --test alter_table.test

The seed draws the order of the tests, and where the daemon is stopped or killed. At the end there is a line for each
server: tests, statements, comparisons, stops, failures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suites.follower import MODES
from tests.suites.mysqltests import run_tests
from tests.suites.regression import run_regression
from tests.suites.report import Report, Wanted

SERVERS = ("postgres", "mysql", "mariadb")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=SERVERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=10, help="the time for each server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, help="what happens to the daemon; drawn if it is not given")
    parser.add_argument("--test", action="append", default=[], help="only this one: a file's name")
    parser.add_argument("--release", help="PostgreSQL's major version: 15, 17, 18, 19")
    given = parser.parse_args(arguments)
    reports = [_run(server, given) for server in given.server or SERVERS]
    for report in reports:
        print(report.summary(), flush=True)
    return 1 if any(report.failures for report in reports) else 0


def _run(server: str, given: argparse.Namespace) -> Report:
    wanted = Wanted(given.minutes * 60, given.seed, given.mode, frozenset(given.test), given.release)
    if server == "postgres":
        return run_regression(wanted)
    return run_tests("mariadb" if server == "mariadb" else "mysql", wanted)


if __name__ == "__main__":
    sys.exit(main())
