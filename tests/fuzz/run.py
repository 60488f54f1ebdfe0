"""Many random cases for both PostgreSQL decoders: `make fuzz`.

Runs hypothesis in rounds until the number of messages is reached, and prints it. A case in which the decoders
differ is printed with the seed that replays it, and ends the run with an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.support.postgres.fuzz import case_of, copy_differs, differs

from cdcflow.sources.postgres.decoders import COMPILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="how many messages at least")
    parser.add_argument("--seed", type=int, default=0, help="where to begin")
    parser.add_argument("--case", type=int, help="only this case")
    arguments = parser.parse_args()
    if COMPILED is None:
        print("the compiled decoders were not built, so there is nothing to compare", file=sys.stderr)
        return 2
    counts = {"messages": 0, "malformed": 0, "cases": 0, "copied": 0}

    def check(number: int) -> None:
        case = case_of(number)
        rows, copy_garbled, copy_difference = copy_differs(number)
        counts["messages"] += len(case.messages) + rows
        counts["copied"] += rows
        counts["malformed"] += len(case.messages) * case.malformed + rows * copy_garbled
        counts["cases"] += 1
        difference = differs(case) or copy_difference
        if difference:
            raise AssertionError(f"case {number}:\n{difference}")

    if arguments.case is not None:
        check(arguments.case)
    else:
        while counts["messages"] < arguments.messages:
            options = settings(
                max_examples=200,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            seed(arguments.seed)(options(given(st.integers(0, 2**60))(check)))()
            arguments.seed += 1
    print(
        f"{counts['messages']:,} messages in {counts['cases']:,} cases ({counts['copied']:,} of them COPY rows; "
        f"{counts['malformed']:,} in cases with malformed bytes): 0 differences"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
