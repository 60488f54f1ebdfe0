"""Many random cases for both MySQL decoders: part of `make fuzz`.

Runs until the number of rows and packets is reached, and prints it. A case in which the decoders differ is
printed with the number that replays it, and ends the run with an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.mysql.fuzz import case_of, differs, result_case_of, results_differ, split_differs

from cdcflow.sources.mysql.decoders import COMPILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="how many rows and packets at least")
    parser.add_argument("--seed", type=int, default=0, help="the first case's number")
    parser.add_argument("--case", type=int, help="only this case")
    arguments = parser.parse_args()
    if COMPILED is None:
        print("the compiled decoders were not built, so there is nothing to compare", file=sys.stderr)
        return 2
    number = arguments.seed if arguments.case is None else arguments.case
    first, images, selected, packets = number, 0, 0, 0
    while number == first or (arguments.case is None and images + selected + packets < arguments.messages):
        events, difference = split_differs(number)
        difference = differs(number) or results_differ(number) or difference
        if difference:
            print(f"case {number}:\n{difference}", file=sys.stderr)
            return 1
        images += case_of(number).rows
        selected += result_case_of(number).rows
        packets += events
        number += 1
    print(
        f"{images:,} row images, {selected:,} result rows and {packets:,} packets in {number - first:,} cases: "
        "0 differences"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
