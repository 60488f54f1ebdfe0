"""`python -m bench.beside TREE`: this checkout next to a second one (an older commit), in the same rounds.

Another checkout needs its compiled decoders in place (`python setup.py build_ext --inplace` there). Both read the same
backlogs and tables, in turn; the figure is the ratio of this checkout's rate to the other's. The logs are begun by the
second one: a newer cdcflow continues an older one's log, not the other way round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.servers.mysql import FLAVORS

from bench import backfill, contents, drain, parties, server
from bench.harness import Child, Outcome, Party, rounds, tell
from bench.mysql import backfill as mysql_backfill
from bench.mysql import drain as mysql_drain
from bench.mysql import server as mysql_server
from bench.shapes import NARROW

THIS, OTHER = "this checkout", "the other"
HERE = Path(__file__).parent.parent
PER_TRANSACTION = 100


def both(party: Party) -> dict[str, Party]:
    """The same party with cdcflow from this checkout, and from the one that children import by default."""

    def here() -> Outcome:
        there, Child.tree = Child.tree, HERE
        try:
            return party()
        finally:
            Child.tree = there

    return {THIS: here, OTHER: party}


def cases(rows: int, count: int) -> Iterator[tuple[str, dict[str, list[Outcome]]]]:
    with tempfile.TemporaryDirectory() as folder, server.Server("tcp") as running:
        backlog = server.prepared(running, Path(folder), NARROW, rows, PER_TRANSACTION)
        capture = parties.capture(backlog, "never", parties.verified(backlog))
        yield "drain", rounds(both(capture), count, postmaster=running.postmaster)
        capture = parties.capture(backlog, "auto", parties.verified(backlog))
        yield "catch-up", rounds(both(capture), count, postmaster=running.postmaster)
    with tempfile.TemporaryDirectory() as folder, server.Server("tcp") as running:
        backfill.filled(running, NARROW, rows)
        source = contents.source_rows(running, NARROW)
        capture = partial(backfill.captured, running, Path(folder), NARROW, source)
        yield "backfill", rounds(both(capture), count, postmaster=running.postmaster)
    for flavor in FLAVORS:
        with tempfile.TemporaryDirectory() as folder, mysql_server.Server(flavor) as served:
            waiting = mysql_server.prepared(served, Path(folder), rows, PER_TRANSACTION, with_debezium=False)
            capture = partial(mysql_drain.captured, waiting)
            yield f"mysql.drain, {flavor}", rounds(both(capture), count, postmaster=served.pid)
        with tempfile.TemporaryDirectory() as folder, mysql_server.Server(flavor) as served:
            served.make()
            served.insert(1, rows)
            capture = partial(mysql_backfill.captured, served, Path(folder), served.source_rows())
            yield f"mysql.backfill, {flavor}", rounds(both(capture), count, postmaster=served.pid)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.beside", description=__doc__)
    parser.add_argument("tree", type=Path, metavar="TREE", help="the other checkout")
    parser.add_argument("--rows", type=int, default=drain.ROWS, help=f"rows of each backlog and table ({drain.ROWS})")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one that warms up (5)")
    options = parser.parse_args()
    # Only children, by their own checkout's code: what starts servers and reads the logs of both is this checkout's.
    Child.tree = options.tree.resolve()
    tell(server.machine("tcp"))
    for name, measured in cases(options.rows, options.rounds):
        ours, theirs = measured[THIS], measured[OTHER]
        ratios = sorted(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        cpu = statistics.median(a.cpu_s_per_million / b.cpu_s_per_million for a, b in zip(ours, theirs, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name}: {statistics.median(ratios):.2f} of the other's rows/s ({spread}), CPU {cpu:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
