"""fresh-rate: the highest rate of changes that plain readers see in time, next to a stream's MERGE.

Both parties get the same changes from the same writer, one after the other, and the same reader measures. In time is:
p99 of each minute is at most three seconds, for ten minutes. Steps of a minute lead to the rate. The peer runs with the
trigger of `TRIGGERS` that has the lowest p99 at `COMPARED_RATE`, at which both parties' p99 is a line, too.
"""

from __future__ import annotations

from bench import freshparties, freshrun
from bench.fresh import QUICK_ROWS, Case
from bench.freshparties import STREAM, Stream
from bench.freshrun import HELD_S, Run
from bench.harness import Budget, Failed, tell
from bench.mergeparties import FORMATS
from bench.results import Line, alone, at_least, at_most, compared

ROWS = 5_000_000
"""Of each table."""
RATES = (100, 300, 1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000)
BEGIN, PEER_BEGIN = 10_000, 300
COMPARED_RATE = 300
STEP_S, HELD_FOR_S = 60, 600
QUICK_STEP_S, QUICK_HELD_FOR_S = 30, 60
TRIGGERS = (0.0, 2.0, 5.0, 10.0)
"""In seconds; 0: a batch begins as soon as the previous one has ended."""


def run(budget: Budget, transport: str) -> list[Line]:
    rows = min(budget.rows, QUICK_ROWS) if budget.quick else budget.rows
    step_s, held_s = (QUICK_STEP_S, QUICK_HELD_FOR_S) if budget.quick else (STEP_S, HELD_FOR_S)
    lines: list[Line] = []
    for table_format in FORMATS:
        case = Case(table_format, rows=rows, seconds=held_s)
        size = case.name.partition(", ")[2].partition(", ")[0]
        slow = f"{table_format} in a folder, {size}, {COMPARED_RATE:,} changes/s"
        rate = f"{table_format} in a folder, {size}, p99 at most {HELD_S:g} s for {held_s / 60:g} min"
        tell(f"  fresh-rate: cdcflow, {table_format}")
        with freshparties.cdcflow(table_format, "folder", rows, case.merge, case.log, transport) as party:
            ours = freshrun.run(party, COMPARED_RATE, step_s)
            our_rate, _ = freshrun.highest_rate(
                lambda rate, seconds: freshrun.run(party, rate, seconds), RATES, BEGIN, step_s, held_s
            )
        tell(f"  fresh-rate: {STREAM}, {table_format}")
        with freshparties.stream(table_format, rows) as peer:
            if peer is None:
                lines += [alone("fresh-rate", slow, "s p99", [ours.p(99)])]
                lines += [alone("fresh-rate", rate, "changes/s", [our_rate])]
                continue
            trigger_s, theirs = best_trigger(peer, step_s)
            peer.begin(trigger_s)
            their_rate, _ = freshrun.highest_rate(
                lambda rate, seconds: freshrun.run(peer.party, rate, seconds), RATES, PEER_BEGIN, step_s, held_s
            )
        lines.append(compared("fresh-rate", slow, "s p99", [ours.p(99)], [theirs.p(99)], STREAM, at_most(1)))
        lines.append(compared("fresh-rate", rate, "changes/s", [our_rate], [their_rate], STREAM, at_least(5)))
        lines.append(alone("fresh-rate", slow, "s, the peer's trigger", [trigger_s]))
    return lines


def best_trigger(peer: Stream, seconds: float) -> tuple[float, Run]:
    """The trigger with the lowest p99, and its run.

    Raises:
        Failed: with each of them a table was never seen with the last transaction.
    """
    best: tuple[float, Run] | None = None
    for trigger_s in TRIGGERS:
        tell(f"    a trigger of {trigger_s:g} s:")
        peer.begin(trigger_s)
        try:
            found = freshrun.run(peer.party, COMPARED_RATE, seconds)
        except Failed as error:
            tell(f"    {error}")
            continue
        if best is None or found.p(99) < best[1].p(99):
            best = trigger_s, found
    if best is None:
        raise Failed("the peer did not bring its tables to the last transaction")
    return best
