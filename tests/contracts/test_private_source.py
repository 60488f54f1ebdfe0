"""A source under column policies passes the suite that every source passes."""

from __future__ import annotations

import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.ports.source import Source
from cdcflow.config.columns import TableRules
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.source import private_source
from cdcflow.testing.sources import SourceContract

POLICIES = {"public.*": TableRules.model_validate({"columns": {"name": {"truncate": 1000}}, "optional": ["name"]})}
"""They change no value of the suite's, so that everything must be the same without them."""


class PrivateMemoryKit(MemoryKit):
    def open_source(self) -> Source:  # type: ignore[override]  # around the other
        return private_source(super().open_source(), PolicyRules(POLICIES))


class TestPrivateSource(SourceContract):
    """Every test of the suite."""

    kit = PrivateMemoryKit

    @pytest.fixture
    def source_kit(self) -> PrivateMemoryKit:
        return PrivateMemoryKit()

    def test_column_of_another_type_has_its_values_in_that_type(self, source_kit: PrivateMemoryKit) -> None:  # type: ignore[override]
        """Here it has a type to which its policy cannot be applied, and the capture stops before its next row."""
        with pytest.raises(AssertionError, match="neither text nor bytes, so its values cannot be truncated"):
            super().test_column_of_another_type_has_its_values_in_that_type(source_kit)
