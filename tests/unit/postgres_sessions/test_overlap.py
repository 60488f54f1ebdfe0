"""Two lists of transactions, cdcflow's and the server's: whether they are one history."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.sources.postgres.overlap import first_difference


def headers(*transactions: tuple[str, int, int]) -> pa.Table:
    schema = pa.schema([("position", pa.string()), ("xid", pa.uint64()), ("commit_ts", pa.timestamp("us", tz="UTC"))])
    return pa.Table.from_pylist([{"position": p, "xid": x, "commit_ts": t} for p, x, t in transactions], schema)


@pytest.mark.parametrize(
    ("ours", "theirs", "differs"),
    [
        ([], [], None),
        ([("0/1", 7, 1), ("0/2", 8, 1)], [("0/1", 7, 1), ("0/2", 8, 1)], None),
        ([("0/1", 7, 1), ("0/2", 8, 1)], [("0/1", 7, 1), ("0/2", 9, 1)], "0/2"),
        ([("0/1", 7, 1), ("0/3", 8, 1)], [("0/1", 7, 1), ("0/2", 8, 1)], "0/2"),
        ([("0/1", 7, 1), ("0/2", 8, 1)], [("0/1", 7, 1), ("0/2", 8, 2)], "0/2"),
        ([("0/1", 7, 2), ("0/2", 8, 2)], [("0/1", 7, 1), ("0/2", 8, 2)], "0/1"),
        ([("0/1", 7, 1)], [], "0/1"),
        ([], [("0/1", 7, 1)], "0/1"),
        ([("0/1", 7, 1)], [("0/1", 7, 1), ("0/2", 8, 1)], "0/2"),
    ],
)
def test_first_transaction_that_only_one_has_is_named(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]], differs: str | None
) -> None:
    """One more, one less, another id, place or commit time: each means that one of the histories diverged."""
    assert first_difference(headers(*ours), headers(*theirs)) == differs
