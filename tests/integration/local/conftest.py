"""Logs written by hand, merged in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import File
from cdcflow.tables.local.iceberg import IcebergTable


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "ware house%20"  # no path that is also a URL's


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    """Each table format in turn."""
    return str(request.param)


@pytest.fixture
def merge(format_name: str) -> Callable[..., MergeReport]:
    """merge(log, warehouse): the merge without Spark, into tables of the format whose turn it is."""
    return partial(local.merge, table_format=format_name)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many files commits marked rows in, how many of them for a second time, and how many were rewritten."""
    seen: Counter[str] = Counter()

    def has_marks(file: Any) -> bool:
        return bool(file.vector if isinstance(file, File) else file.delete_files)

    def counted(right: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(table: Any, old: Any, new: Any, *given: Any) -> None:
            right(table, old, new, *given)
            marked = given[3] if len(given) > 3 else ()
            seen["marked"] += len(marked)
            seen["marked again"] += sum(has_marks(file) for file, _ in marked)
            seen["written again"] += len(old)

        return replaced

    for of in (IcebergTable, DeltaTable):
        monkeypatch.setattr(of, "replace", counted(of.replace))
    return seen
