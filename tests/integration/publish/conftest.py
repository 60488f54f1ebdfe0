"""A broker for the tests of published topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdcflow.testing.kafka import KafkaBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running
