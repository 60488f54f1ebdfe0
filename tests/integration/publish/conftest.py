"""A broker and a log for the tests of published topics."""

from __future__ import annotations

from collections.abc import Iterator

import everytypes
import pytest
from tests.servers.kafka import KafkaBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[everytypes.Log]:
    """Tables of all types, captured while they changed."""
    with everytypes.captured(tmp_path_factory.mktemp("everytypes")) as made:
        yield made
