"""Many random columns for the compiled and the plain kernels of policies and row rules: part of `make fuzz`.

Runs until the number of values and documents is reached, and prints it. A case in which the kernels differ is printed
with the number that replays it, and ends the run with an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.privacy.columns import column_of, results_differ
from tests.support.privacy.encryption import encryption_differs
from tests.support.rows.documents import documents_of, path_differs

from cdcflow.sources.privacy.kernels import COMPILED as OPENSSL
from cdcflow.sources.privacy.kernels import hash_of
from cdcflow.sources.rows.kernels import COMPILED as PATHS

KEY = b"5e8ff9bf55ba3508199d22e984129be6"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="how many values and documents at least")
    parser.add_argument("--seed", type=int, default=0, help="the first case's number")
    parser.add_argument("--case", type=int, help="only this case")
    arguments = parser.parse_args()
    if OPENSSL is None or PATHS is None:
        print("the compiled kernels were not built, so there is nothing to compare", file=sys.stderr)
        return 2
    plain, compiled = hash_of(KEY, "k1:", None), hash_of(KEY, "k1:", OPENSSL)
    number = arguments.seed if arguments.case is None else arguments.case
    first, values, documents = number, 0, 0
    while number == first or (arguments.case is None and values + documents < arguments.messages):
        column, (texts, path) = column_of(number), documents_of(number)
        difference = results_differ(column, plain, compiled) or path_differs(texts, path)
        difference = difference or encryption_differs(column, number)
        if difference:
            print(f"case {number}:\n{difference}", file=sys.stderr)
            return 1
        values += len(column)
        documents += len(texts)
        number += 1
    cipher = "OpenSSL" if OPENSSL.HAS_GCM_SIV else "cryptography, and texts by the compiled kernel"
    print(f"{values:,} values and {documents:,} documents in {number - first:,} cases: 0 differences")
    print(f"encrypted by {cipher}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
