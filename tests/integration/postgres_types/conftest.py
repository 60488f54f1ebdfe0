"""A database with a decoder for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.postgres import Database
from tests.support.postgres.wire import Lab, lab_of


@pytest.fixture
def lab(database: Database) -> Iterator[Lab]:
    yield from lab_of(database)
