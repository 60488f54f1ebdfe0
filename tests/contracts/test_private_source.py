"""A source under column policies passes the suite that every source passes."""

from __future__ import annotations

import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.ports.source import Source
from cdcflow.config.columns import TableRules
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.source import private_source
from cdcflow.testing.sources import SourceContract, reading
from cdcflow.testing.sources.chunks import keys

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

    def test_column_of_another_type_has_its_values_in_that_type(  # type: ignore[override]
        self, source_kit: PrivateMemoryKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Here it has a type to which its policy cannot be applied, and the table fails before its next row."""
        monkeypatch.setattr(reading, "PATIENCE_S", 5.0)
        with pytest.raises(AssertionError, match="nothing yet: failed"):
            super().test_column_of_another_type_has_its_values_in_that_type(source_kit)


FILTER = {
    "public.items*": TableRules.model_validate({"where": "id IS NOT NULL OR name IS NULL"}),
    "public.others*": TableRules.model_validate({"where": "NOT (id IS NULL)"}),
}
"""It holds for every row of the suite, so that everything must be the same without it."""


class FilteredMemoryKit(MemoryKit):
    def open_source(self) -> Source:  # type: ignore[override]  # around the other
        return private_source(super().open_source(), PolicyRules(FILTER))


class TestFilteredSource(SourceContract):
    """Every test of the suite."""

    kit = FilteredMemoryKit

    @pytest.fixture
    def source_kit(self) -> FilteredMemoryKit:
        return FilteredMemoryKit()

    def test_keys_give_the_rows_that_have_them_now(self, source_kit: FilteredMemoryKit) -> None:  # type: ignore[override]
        """And deletes of the others: a row that the log has may not fit the filter now."""
        source_kit.execute("INSERT INTO items VALUES (1, 'one'), (2, 'two')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.execute("DELETE FROM items WHERE id = 2")
            read = self.read_keys(chunks, plan, keys(plan.shape, 1, 2, 99))
            rows = sorted(self.rows_read(read, source_kit.table), key=lambda row: row[1])
            assert [row[:2] for row in rows] == [("r", 1), ("d", 2), ("d", 99)]
