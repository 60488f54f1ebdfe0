"""Which rows the canary of freshness samples under row rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.ports.source import Sample
from cdcflow.config.columns import TableRules
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import TableId
from cdcflow.sources.memory import MemorySource
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.source import private_source
from cdcflow.testing.sources import LOG_ID


class SampledSource(MemorySource):
    """Its sample shows the key by which it was read."""

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        return Sample("", ", ".join(key))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"columns": {"id": {"rename": "nr"}}}, Sample("", "id")),
        ({"where": "id > 1"}, None),
        ({"computed": {"twice": "id + id"}}, Sample("", "id")),
    ],
)
def test_rows_are_sampled_by_the_names_of_the_source_and_not_under_a_filter(
    given: dict[str, Any], expected: Sample | None
) -> None:
    """A row for which the filter does not hold changes without a change in the log, and nothing was lost."""
    rules = PolicyRules({"public.items": TableRules.model_validate(given)})
    source: Any = private_source(SampledSource(MemoryKit().database, ("public.items",)), rules)
    source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID)
    [table] = source.tables()
    assert source.sample(table.id, table.key) == expected
    source.close()
