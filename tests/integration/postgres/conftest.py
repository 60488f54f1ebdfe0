"""Captures that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.postgres import Database
from tests.support.postgres.controlled_source import Capture, MakeCapture


@pytest.fixture
def make_capture() -> Iterator[MakeCapture]:
    """Opens captures, and closes them after the test."""
    made: list[Capture] = []

    def make(database: Database, **settings: Any) -> Capture:
        made.append(Capture(database, **settings))
        return made[-1]

    yield make
    for capture in reversed(made):
        capture.close()


@pytest.fixture
def capture(database: Database, make_capture: MakeCapture) -> Capture:
    """A capture of `public.*` in the test's database; not prepared yet, so that tables can be created first."""
    return make_capture(database)
