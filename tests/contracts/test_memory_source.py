"""The source in memory keeps the contract of all sources, whether its log or its catalog tells of rewritten rows."""

from __future__ import annotations

import pytest
from memorykit import MemoryKit

from cdcflow.sources.memory.database import Told
from cdcflow.testing.sources import SourceContract


@pytest.fixture(params=["log", "catalog"])
def source_kit(request: pytest.FixtureRequest) -> MemoryKit:
    told: Told = request.param
    return MemoryKit(told)


class TestMemory(SourceContract):
    """Every test of the suite."""

    kit = MemoryKit
