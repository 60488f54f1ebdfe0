"""A database with a decoder for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pgwire import Lab, lab_of
from tests.servers.postgres import Database


@pytest.fixture
def lab(database: Database) -> Iterator[Lab]:
    yield from lab_of(database)
