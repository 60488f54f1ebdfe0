"""The source in memory keeps the contract of all sources, whether its log or its catalog reports rewritten rows."""

from __future__ import annotations

import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.sources.memory import MemorySource
from cdcflow.sources.memory_database import RewritesKnownBy
from cdcflow.testing.sources import LOG_ID, SourceContract
from cdcflow.testing.sources.chunks import keys


@pytest.fixture(params=["log", "catalog"])
def source_kit(request: pytest.FixtureRequest) -> MemoryKit:
    rewrites_known_by: RewritesKnownBy = request.param
    return MemoryKit(rewrites_known_by)


class TestMemory(SourceContract):
    """Every test of the suite."""

    kit = MemoryKit


def test_keys_with_large_rows_come_in_several_chunks(source_kit: MemoryKit) -> None:
    """A chunk of keys ends early where rows are large, and reports which keys it did not read."""
    source_kit.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    source = MemorySource(source_kit.database, keys_bytes_max=1)
    suite = TestMemory()
    with suite.reading(source, source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID).checkpoint) as (_, chunks):
        plan = chunks.plan(source_kit.table, 1)
        left: KeySet | None = keys(plan.shape, 1, 99, 2, 3)
        seen: list[int] = []
        while left is not None:
            read = suite.read_keys(chunks, plan, left)
            seen += [row[1] for row in suite.rows_read(read, source_kit.table)]
            left = read.keys_left
        assert sorted(seen) == [1, 2, 3]


def test_table_without_a_key_that_is_too_large_is_refused_with_an_error_that_names_it(source_kit: MemoryKit) -> None:
    """It would be read in one piece."""
    source_kit.create("bare", keyed=False)
    source_kit.execute("INSERT INTO bare VALUES (1, 'a')")
    source = MemorySource(source_kit.database, whole_bytes_max=1)
    suite, bare = TestMemory(), source_kit.named("bare")
    with suite.reading(source, source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID).checkpoint) as (_, chunks):
        plan = chunks.plan(bare, 1)
        with pytest.raises(ConfigurationError, match=r"bare.*no key"):
            chunks.read_chunk(Chunk(bare, 1, 1, plan.plan, None, 1, Token("1/1/low"), kind="whole"))
