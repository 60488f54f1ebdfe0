"""`python -m bench NAME …`: run benches, print the table, keep the lines."""

from __future__ import annotations

import argparse
import compileall
import importlib
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import results, server
from bench.harness import Budget, Failed, tell

NAMES = (
    "drain", "catchup", "backfill", "executors", "load", "latency", "transaction", "growth", "restart", "writer",
    "kafka", "publish", "tokafka", "kafkalatency", "merge", "mergelatency", "fresh", "freshrate",
    "tables", "verify", "log", "quorum", "mysql.drain", "mysql.backfill", "mysql.memory", "governed",
)  # fmt: skip
SOURCES = Path(__file__).parent.parent / "src"
QUICK = ("drain", "catchup", "backfill", "latency")
LONG = ("fresh", "freshrate")
"""They take hours, and run only if they are named."""
PART = ("governed",)
"""`load` has them, too."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which benches: {', '.join(NAMES)} (none: all)")
    parser.add_argument("--quick", action="store_true", help="small: drain, catchup, backfill and latency in minutes")
    parser.add_argument("--rounds", type=int, help="measured rounds, after one that warms up (3)")
    parser.add_argument("--rows", type=int, help="scales each bench's workload (its own size)")
    parser.add_argument("--transport", choices=["tcp", "unix"], default="tcp", help="the same for everybody (tcp)")
    options = parser.parse_args()
    names = options.names or (QUICK if options.quick else [name for name in NAMES if name not in LONG + PART])
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"unknown bench {', '.join(unknown)}")
    compileall.compile_dir(SOURCES, quiet=1)  # installed packages are compiled, too
    lines: list[results.Line] = []
    machine = server.machine(options.transport)
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        rows = options.rows or (module.ROWS // 3 if options.quick else module.ROWS)
        budget = Budget(rows, options.rounds or 3, options.quick)
        begun = time.monotonic()
        tell(f"{name} …")
        try:
            found = [replace(line, machine=line.machine or machine) for line in module.run(budget, options.transport)]
        except Failed as error:
            tell(f"{name} failed, and prints no number: {error}")
            return 1
        tell(f"{name}: {time.monotonic() - begun:.0f} s")
        results.keep(found)
        lines += found
    results.show(lines)
    print(machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
