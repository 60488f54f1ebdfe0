"""Run many simulated schedules: `python tests/simulation/run.py --seeds 10000`, or one again with `--seed N`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulation.servers import SERVERS
from tests.simulation.world import Outcome, run


def replay(
    seed: int, server: str = "postgres", *, repairs: bool = False, gaps: bool = False, refusals: bool = False
) -> str:
    """The command that plays one schedule again."""
    options = (" --repairs" if repairs else "") + (" --gaps" if gaps else "")
    options += " --refusals" if refusals else ""
    return f"python tests/simulation/run.py --server {server} --seed {seed}{options}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--server", choices=list(SERVERS), default="postgres", help="what kind of source (postgres)")
    parser.add_argument("--repairs", action="store_true", help="deletes get lost, and rows are repaired")
    parser.add_argument("--gaps", action="store_true", help="the source discards log that is still needed")
    parser.add_argument("--refusals", action="store_true", help="some rows cannot leave the source")
    parser.add_argument("--counts", action="store_true", help="print what the schedules exercised")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds) if args.seed is None else [args.seed]
    began = time.monotonic()
    counts: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    for number, seed in enumerate(seeds, 1):
        modes = {"repairs": args.repairs, "gaps": args.gaps, "refusals": args.refusals}
        outcome = run(seed, server=SERVERS[args.server], **modes)
        outcomes.append(outcome)
        counts += outcome.counts
        if outcome.violation is not None:
            again = replay(seed, args.server, **modes)
            print(f"seed {seed}: {outcome.violation}\n  again with: {again}")
        if number % 1000 == 0:
            print(f"{number} schedules, {time.monotonic() - began:.0f} s", flush=True)
    if args.counts:
        for what, count in sorted(counts.items()):
            print(f"{count:9} {what}")
    cuts, crashes = sum(o.cuts for o in outcomes), sum(o.crashes for o in outcomes)
    violations = sum(o.violation is not None for o in outcomes)
    print(f"schedules run {len(outcomes)}, cuts checked {cuts}, crashes {crashes}, violations {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
