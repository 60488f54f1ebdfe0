"""Logs made by hand, merged in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from handlog import HandLog

from cdcflow import local
from cdcflow.warehouse.formats import FORMATS
from cdcflow.warehouse.job import MergeReport


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
