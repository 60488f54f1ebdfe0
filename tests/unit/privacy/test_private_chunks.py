"""Rows that are read again by keys that are hashed or encrypted, and what a checkpoint has of such keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.config.columns import TableRules
from cdcflow.model.change import KeySet, Run
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.source import private_source
from cdcflow.testing.sources import LOG_ID

SECRETS = {"FIRST": "5e8ff9bf55ba3508199d22e984129be6", "OTHER": "d1bc8d3ba4afc7e109612cb73acbdddac052c930"}


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> MemoryKit:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    made = MemoryKit()
    made.execute(*(f"INSERT INTO items VALUES ({i}, 'n{i}')" for i in range(1, 4001, 1000)))
    made.execute("INSERT INTO items VALUES (7, 'seven'), (8, 'eight')")
    return made


@contextmanager
def chunks_of(kit: MemoryKit, policy: str, key: str = "FIRST") -> Iterator[ChunkSource]:
    given = {"columns": {"id": {policy: f"${{env:{key}}}"}}}
    source = private_source(kit.open_source(), PolicyRules({"public.items": TableRules.model_validate(given)}))
    source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID)
    chunks = source.chunks()
    yield chunks
    chunks.close()
    source.close()


def whole(kit: MemoryKit, chunks: ChunkSource) -> tuple[Chunk, pa.Table]:
    """A chunk that reads all rows, and the rows."""
    planned = chunks.plan(kit.table, 1)
    chunk = Chunk(kit.table, 1, 1, planned.plan, None, planned.size, Token("1/1/low"))
    read = chunks.read_chunk(chunk)
    assert read.exhausted
    return replace(chunk, after=read.reached), rows_of(read.run)


def rows_of(run: object) -> pa.Table:
    assert isinstance(run, Run)
    return pa.Table.from_batches([batch.rows for batch in run.batches])


@pytest.mark.parametrize("policy", ["hash", "encrypt"])
def test_rows_are_found_by_the_keys_that_the_log_has(kit: MemoryKit, policy: str) -> None:
    """A hash leads nowhere, so the table is read through; an encrypted key is decrypted."""
    with chunks_of(kit, policy) as chunks:
        chunk, rows = whole(kit, chunks)
        wanted = rows.filter(pa.compute.is_in(rows.column("name"), pa.array(["seven", "eight"])))
        keys = KeySet(wanted.select(["id"]))
        read = chunks.read_chunk(replace(chunk, kind="keys", keys=keys, after=None))
        found = rows_of(read.run)
        assert sorted(found.column("name").to_pylist()) == ["eight", "seven"]
        assert set(found.column("id").to_pylist()) == set(wanted.column("id").to_pylist())
        assert (read.rewritten, read.keys_left) == (False, None)
        assert read.visibilities


@pytest.mark.parametrize("policy", ["hash", "encrypt"])
def test_repair_deletes_keys_that_the_source_does_not_have(kit: MemoryKit, policy: str) -> None:
    with chunks_of(kit, policy) as chunks:
        chunk, rows = whole(kit, chunks)
        kit.execute("DELETE FROM items WHERE id = 7")
        names = {name: key for key, name in zip(*(rows.column(c).to_pylist() for c in ("id", "name")), strict=True)}
        keys = KeySet(pa.table({"id": [names["seven"], names["eight"]]}))
        read = chunks.read_chunk(replace(chunk, kind="keys", keys=keys, after=None, repairs=True))
        found = rows_of(read.run).select(["_op", "id"]).to_pylist()
        assert read.deleted == 1
        assert found == [{"_op": "d", "id": names["seven"]}, {"_op": "r", "id": names["eight"]}]


@pytest.mark.parametrize("policy", ["hash", "encrypt"])
def test_plan_and_cursor_of_another_key_or_of_no_policy_are_planned_again(kit: MemoryKit, policy: str) -> None:
    """They are in a checkpoint when the settings change; a text that cannot be read must not stop a capture."""
    with chunks_of(kit, policy) as chunks:
        chunk, _ = whole(kit, chunks)
        assert chunk.plan.startswith("sealed:")
        assert "bound" not in chunk.plan
        assert not chunks.read_chunk(chunk).rewritten
        plain = replace(chunk, plan='{"bound": 1}', after=None)
        assert chunks.read_chunk(plain).rewritten
    with chunks_of(kit, policy, "OTHER") as chunks:
        assert chunks.read_chunk(chunk).rewritten
    source = private_source(kit.open_source(), PolicyRules({"public.items": TableRules()}))
    source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID)
    assert source.chunks().read_chunk(chunk).rewritten
    source.close()
