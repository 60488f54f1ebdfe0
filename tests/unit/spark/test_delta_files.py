"""Which files of a Delta table a maintenance run with clustering rewrites."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcflow.spark.private_delta.files import SMALL_BYTES, files_to_rewrite


def file(size: int = SMALL_BYTES, rows: int | None = 100, dead: int | None = None) -> dict[str, Any]:
    """The entry of a file in the table's log."""
    told: dict[str, Any] = {"size": size, "stats": None if rows is None else json.dumps({"numRecords": rows})}
    return told if dead is None else {**told, "deletionVector": {"cardinality": dead}}


@pytest.mark.parametrize(
    ("files", "numbers"),
    [
        ([], []),
        ([file(), file()], []),
        ([file(), file(1)], []),  # one that is small becomes no larger
        ([file(1), file(), file(2)], [0, 2]),
        ([file(), file(dead=33)], []),
        ([file(), file(dead=34), file(1)], [1, 2]),
        ([file(1, dead=34)], [0]),
        ([file(rows=None, dead=99)], []),  # the share is unknown
        ([file(rows=0, dead=0)], []),
    ],
)
def test_small_files_and_worn_ones_are_written_again(files: list[dict[str, Any]], numbers: list[int]) -> None:
    assert files_to_rewrite(files) == numbers
