"""Versions of rows: the oracle's versions are what was true at the source, and the SQL gives the oracle's versions.

Each log is generated from a seed, and the seeds of a run are consecutive: `CDCFLOW_VERSION_SEED=<seed>
CDCFLOW_VERSION_LOGS=1` runs one of them alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.support.versions.embedded_engine import EmbeddedHistory
from tests.support.versions.histories import Log, Piece, as_text, compacted, is_doubtful, make, split, untrue
from tests.support.versions.tables import in_order, told

from cdcflow.log.fold.fold import End, Key, LogChange, Version, history
from cdcflow.tables.merge import history as sql
from cdcflow.tables.merge import history_columns

SEED = int(os.environ.get("CDCFLOW_VERSION_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
LOGS = int(os.environ.get("CDCFLOW_VERSION_LOGS", "300"))
LOGS_SQL = max(1, LOGS // 8)
MANY = 100
"""Logs that the SQL merges, too, in `make test-long`."""

Versions = list[tuple[Key, Version]]


def merged(
    merges: Sequence[Sequence[Piece]],
    names: history_columns.OffsetNames = history_columns.OffsetNames(),  # noqa: B008 - it is frozen
    gap: tuple[int, int] | None = None,
) -> Versions:
    """The versions that the SQL gives."""
    there = EmbeddedHistory(names)
    try:
        for pieces in merges:
            there.merge(pieces, gap)
        return in_order(there.versions())
    finally:
        there.close()


def logs(count: int = LOGS, generations: int = 2) -> list[tuple[int, Log]]:
    made = ((seed, make(seed, generations=generations)) for seed in range(SEED, SEED + count))
    return [(seed, log) for seed, log in made if log.pieces]


def differs(seed: int, log: Log, expected: Versions, found: Versions) -> str:
    lines = [f"CDCFLOW_VERSION_SEED={seed} CDCFLOW_VERSION_LOGS=1"]
    lines += [f"  lacks {v}" for v in expected if v not in found] + [f"  has {v}" for v in found if v not in expected]
    return "\n".join([*lines, as_text(log.changes(log.pieces))])


def check(seed: int, log: Log) -> None:
    """The SQL gives the oracle's versions, merge after merge."""
    merges = split(random.Random(seed), log.pieces)
    expected, found = told(merges), merged(merges)
    assert found == expected, differs(seed, log, expected, found)


def test_versions_show_the_rows_of_the_source() -> None:
    """Each version in each of its columns, over all of the time that it names; also while a backfill reads."""
    for seed, log in logs():
        wrong = untrue(log, told([log.pieces]))
        assert not wrong, "\n".join([f"CDCFLOW_VERSION_SEED={seed}", *wrong, as_text(log.changes(log.pieces))])


def test_versions_are_the_same_however_merges_cut_the_log() -> None:
    """One merge more or less, or a compaction, must not change the history. A row with a version that spans a time
    without a capture is not compared: its end was learned in one way or another, or not at all."""
    for seed, log in logs(generations=1):
        chance = random.Random(seed)
        whole, cut = told([log.pieces]), told(split(chance, compacted(chance, log.pieces)))
        doubted = {k for k, v in (*whole, *cut) if is_doubtful(log, v)}
        whole, cut = ([(k, v) for k, v in versions if k not in doubted] for versions in (whole, cut))
        assert cut == whole, differs(seed, log, whole, cut)


def test_sql_equals_the_oracle() -> None:
    """For any log, and however merges cut it."""
    for seed, log in logs(LOGS_SQL):
        check(seed, log)


@pytest.mark.long
def test_sql_equals_the_oracle_over_many_logs() -> None:
    """The same, of more of them."""
    for seed, log in logs(MANY):
        check(seed, log)


def check_gap(seed: int, log: Log) -> None:
    """The same, where changes were lost at some cut of the log, and perhaps the rows were proven to be right later."""
    chance = random.Random(seed)
    cuts = [piece.last_offset + 1 for piece in log.pieces]
    first = chance.choice(cuts)
    gap = first, chance.choice([0, *(cut for cut in cuts if cut > first)])
    merges = split(chance, log.pieces)
    expected, found = told(merges, gap), merged(merges, gap=gap)
    assert found == expected, f"gap {gap} {differs(seed, log, expected, found)}"


@pytest.mark.parametrize(
    ("ops", "end"),
    [
        ("c", End(5, exact=False)),
        ("cu", End(5, exact=False)),
        ("cd", End(5, exact=False)),
        ("u", End(10)),
        ("dc", End(11)),
        ("dcd", End(12)),
    ],
)
def test_row_that_an_insert_replaces_was_gone_when_the_backfill_began(ops: str, end: End) -> None:
    """Its delete was never captured. A transaction that deletes the row before it inserts it shows that the row
    existed."""
    open_: dict[Key, Version] = {(1,): Version({"id": 1, "a": 1}, frozenset(), End(2), None, 2)}
    changes = [LogChange(10 + at, op, {"id": 1, "a": 2 + at}, transaction=10) for at, op in enumerate(ops)]
    found = history(open_, changes, ("id",), since=5)
    assert [(version.start, version.end) for _, version in found.ended] == [(End(2), end)]
    assert [version.start for version in found.open.values()] == ([] if ops[-1] == "d" else [End(changes[-1].offset)])


@pytest.mark.long
def test_versions_that_end_after_a_gap_are_not_exact() -> None:
    """A version that a change after a gap ends may have ended in the gap. The SQL gives the same as the oracle."""
    for seed, log in logs(LOGS_SQL):
        check_gap(seed, log)


@pytest.mark.parametrize("seed", [5743, 17585])
def test_an_end_at_an_offset_that_no_row_has_yet_has_a_position_and_a_time(seed: int) -> None:
    """In these logs the backfill of a table that is now empty is done before any other row arrives. The versions that
    it did not find ended where it began, and had no time, so no query as of a time found them."""
    check(seed, make(seed))


def test_the_offsets_may_be_called_as_auto_cdc_calls_them() -> None:
    """Queries that were written for Spark's tables keep working."""
    log = make(4)
    assert merged([log.pieces], history_columns.AUTO_CDC) == told([log.pieces])


# ── a comparison that cannot fail proves nothing ──────────────────────────────────────────────────────────────


def _instead(text: str, other: str) -> Callable[..., str]:
    return lambda *given: _RIGHT(*given).replace(text, other)


def _one_segment(*given: object) -> str:
    layout, found, names, range_ = given
    assert isinstance(range_, sql.RangeFacts)
    return _RIGHT(layout, found, names, replace(range_, segments=range_.segments[-1:]))  # type: ignore[arg-type]


def _never_crowded(*given: object) -> str:
    layout, found, names, range_ = given
    assert isinstance(range_, sql.RangeFacts)
    return _RIGHT(layout, found, names, replace(range_, alone=range_.may_be_alone))  # type: ignore[arg-type]


_RIGHT = sql.versions

BUGS: dict[str, Callable[..., str]] = {
    "a version for each change": _instead("nn IS NULL OR nn <> n", "true"),
    "no transaction has two changes of a key": _never_crowded,
    "rows that are read make versions at once": _instead("coalesce(ng = g, false) AS h", "false AS h"),
    "values from later in the window": _instead(".op = 'r' AND z", ".op = '?' AND z"),
    "the sweep ends rows that were confirmed": _instead("(zo IS NULL AND lo < ", "(zo IS NULL AND f < "),
    "the sweep ends nothing": _instead("(zo IS NULL AND lo < ", "(false AND lo < "),
    "what was gone ends with the insert": _instead("(zfo = 'c' AND", "(zfo = '?' AND"),
    "an inserted and changed row existed before": _instead("(zfo = 'c' AND", "(zop = 'c' AND"),
    "a window goes over the end of a segment": _one_segment,
    "truncates end nothing": _instead("(tr IS NOT NULL AND", "(false AND"),
    "rows that are read again begin a version": _instead(
        "NOT (op = 'r' AND s IS NOT NULL", "NOT (false AND s IS NOT NULL"
    ),
    "a read's end is exact": _instead("zop NOT IN ('r', 'x')", "true"),
    "a repair's end is exact": _instead("zop NOT IN ('r', 'x')", "zop <> 'r'"),
    "a repair's delete is the source's": _instead("AND x.k THEN 'x'", "AND x.k THEN 'd'"),
    "a repair hides no version": _instead("op IN ('r', 'x') AND coalesce(ng", "op = 'r' AND coalesce(ng"),
    "what a read hides is exact": _instead("coalesce(nh < eo, false)", "false"),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among logs with these seeds."""
    monkeypatch.setattr(sql, "versions", BUGS[bug])
    made = [(seed, make(seed)) for seed in range(40)]

    def check_all() -> None:
        for seed, log in made:
            if log.pieces:
                check(seed, log)

    with pytest.raises(AssertionError, match="CDCFLOW_VERSION_SEED"):
        check_all()


def test_ignored_gap_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among logs with these seeds."""
    monkeypatch.setattr(sql, "_across", lambda *_: "false")
    made = [(seed, make(seed)) for seed in range(40)]

    def check_all() -> None:
        for seed, log in made:
            if log.pieces:
                check_gap(seed, log)

    with pytest.raises(AssertionError, match="CDCFLOW_VERSION_SEED"):
        check_all()
