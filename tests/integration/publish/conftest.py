"""A broker and a log for the tests of published topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.kafka import KafkaBroker
from tests.support.publish import every_type


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[every_type.Log]:
    """Tables of all types, captured while they changed."""
    with every_type.captured(tmp_path_factory.mktemp("everytypes")) as made:
        yield made
