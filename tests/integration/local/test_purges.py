"""Deletes that remove rows where others mark them: `purge_origins` of mode soft_delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.tables.purged_histories import first_difference

from cdcflow import local
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge import reduce


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 40))])
def test_purged_rows_are_gone_and_deleted_ones_are_kept(
    tmp_path: Path, merge: Callable[..., MergeReport], seed: int
) -> None:
    """An archive job's deletes must not empty the copy, and what a person has a right to must leave it."""
    assert first_difference(tmp_path, seed, merge) == ""


def test_purge_that_only_marks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail proves nothing."""
    monkeypatch.setattr(reduce, "_purged_sql", lambda layout: "false")
    assert first_difference(tmp_path, 1, local.merge)
