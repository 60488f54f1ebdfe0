"""Many cases on real servers: `make fuzz-ddl`, or one again with `--server postgres --seed N`.

A case that fails is run again, shrunk, and printed as it would stand in `cases/`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.ddlfuzz.dialects import running
from tests.ddlfuzz.draw import Case, committed, drawn
from tests.ddlfuzz.execute import Outcome, execute
from tests.ddlfuzz.green import GREEN
from tests.ddlfuzz.kinds import KINDS
from tests.ddlfuzz.model import SERVERS, Server
from tests.ddlfuzz.shrink import shrunk
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS, help="only this one")
    parser.add_argument("--seeds", type=int, default=2000, help="how many cases a server")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0, help="end after so long a server (0: when the seeds do)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--green", action="store_true", help="draw from the kinds of `make test` only")
    parser.add_argument("--committed", action="store_true", help="run the cases of cases/ instead, the open ones too")
    parser.add_argument("--no-shrink", action="store_true", help="print a failing case as it was drawn")
    parser.add_argument("--only", nargs="*", help="draw from these kinds, and those of rows")
    parser.add_argument("--without", nargs="*", default=(), help="draw from all kinds but these")
    parser.add_argument("--lower-case", action="store_true", help="on servers that do not tell the case of names")
    arguments = parser.parse_args()
    failed = 0
    for server in [arguments.server] if arguments.server else SERVERS:
        with running(server, in_lower_case=arguments.lower_case) as started:
            failed += _run(server, started, arguments)
    return 1 if failed else 0


def _run(server: Server, started: PostgresServer | MySQLServer, arguments: argparse.Namespace) -> int:
    kinds: frozenset[str] | None = GREEN[server] if arguments.green else None
    if arguments.without:
        kinds = frozenset(KINDS) - set(arguments.without)
    if arguments.only is not None:
        kinds = GREEN[server] | set(arguments.only)
    first, count = (arguments.first, arguments.seeds) if arguments.seed is None else (arguments.seed, 1)
    cases = committed(server) if arguments.committed else (drawn(server, s, kinds) for s in range(first, first + count))
    began = time.monotonic()
    counts: Counter[str] = Counter()
    ran = failed = 0
    for case in cases:
        outcome = execute(case, started)
        ran += 1
        counts += outcome.counts
        counts["stops"] += len(outcome.stops)
        if outcome.failure is not None:
            failed += 1
            print(f"── {server}, {case.title}: {outcome.failure}", flush=True)
            for stop in outcome.stops:
                print(f"   stopped before: {stop[:300]}")
            print(case.text() if arguments.no_shrink else _shrunk(case, outcome, started), flush=True)
        if ran % 50 == 0:
            print(f"{server}: {ran} cases so far, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
        if arguments.minutes and time.monotonic() - began > arguments.minutes * 60:
            break
    print(f"{server}: {ran} cases, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print("  " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())), flush=True)
    return failed


def _shrunk(case: Case, outcome: Outcome, started: PostgresServer | MySQLServer) -> str:
    """The case as text, as small as it gets. One that does not fail again is given back as it was drawn."""

    def fails(tried: Case) -> bool:
        return execute(tried, started).sort == outcome.sort

    if not any(fails(case) for _ in range(3)):
        return f"# did not fail again\n{case.text()}"
    small = shrunk(case, fails)
    again = next((o.failure for o in (execute(small, started) for _ in range(3)) if o.failure), "(not again)")
    return f"{small.text()}   → {again}\n"


if __name__ == "__main__":
    sys.exit(main())
