"""Logs made by hand, merged in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from handlog import HandLog


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "ware house%20"  # no path that is also a URL's
