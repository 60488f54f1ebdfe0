"""Many cases on real servers: `make fuzz-ddl`, or one again with `--server postgres --seed N`.

A case that fails is run again, shrunk, and printed in the form of `cases/`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.ddlfuzz.draw import Case, committed, drawn
from tests.ddlfuzz.jobs import Tried, Ways, tried
from tests.ddlfuzz.kinds import KINDS
from tests.ddlfuzz.model import SERVERS, Server
from tests.ddlfuzz.rows import ROWS

JOBS = 4
"""A case uses 0.6 to 1 s of processor time, and waits for its daemons for about twice as long."""
MEMORY = Path("/dev/shm")  # noqa: S108  `tempfile` chooses the names in it
ROOM = 1 << 30
"""More than the server, the databases and the logs of one job ever take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS, help="only this one")
    parser.add_argument("--seeds", type=int, default=2000, help="how many cases a server")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0, help="minutes for each server (0: no limit, run all seeds)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--committed", action="store_true", help="run the cases of cases/ instead, the open ones too")
    parser.add_argument("--no-shrink", action="store_true", help="print a failing case unshrunk")
    parser.add_argument("--only", nargs="*", help="draw from these kinds, and those of rows")
    parser.add_argument("--without", nargs="*", default=(), help="draw from all kinds but these")
    parser.add_argument("--lower-case", action="store_true", help="on servers that do not tell the case of names")
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help="number of cases run at the same time, each with its own server"
    )
    arguments = parser.parse_args()
    _take_memory(arguments.jobs)
    failed = 0
    for server in [arguments.server] if arguments.server else SERVERS:
        failed += _run(server, arguments)
    return 1 if failed else 0


def _take_memory(jobs: int) -> None:
    """Keep servers and logs in memory if it has room for them: they end with this run."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > jobs * ROOM:
        os.environ["TMPDIR"] = str(MEMORY)


def _run(server: Server, arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    ran = failed = 0
    ways = Ways(server, in_lower_case=arguments.lower_case, shrinks=not arguments.no_shrink)
    with contextlib.closing(tried(_cases(server, arguments), ways, arguments.jobs)) as found:
        for one in found:
            ran += 1
            failed += one.outcome.failure is not None
            counts += one.outcome.counts
            counts["stops"] += len(one.outcome.stops)
            _tell(server, one)
            if ran % 50 == 0:
                print(f"{server}: {ran} cases so far, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
            if arguments.minutes and time.monotonic() - began > arguments.minutes * 60:
                break
    print(f"{server}: {ran} cases, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print("  " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())), flush=True)
    return failed


def _cases(server: Server, arguments: argparse.Namespace) -> Iterable[Case]:
    if arguments.committed:
        return committed(server)
    kinds: frozenset[str] | None = None
    if arguments.without:
        kinds = frozenset(KINDS) - set(arguments.without)
    if arguments.only is not None:
        kinds = ROWS | {"create_table"} | set(arguments.only)
    first, count = (arguments.first, arguments.seeds) if arguments.seed is None else (arguments.seed, 1)
    return (drawn(server, seed, kinds) for seed in range(first, first + count))


def _tell(server: Server, one: Tried) -> None:
    if one.outcome.failure is not None:
        print(f"── {server}, {one.case.title}: {one.outcome.failure}", flush=True)
        for stop in one.outcome.stops:
            print(f"   stopped before: {stop[:300]}")
        print(one.text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
