"""What the demo asks of each database: it is loaded, written to, and counted alike, whichever it is."""

from __future__ import annotations

import contextlib

import pytest

from cdcflow.cli.demo import flights
from cdcflow.cli.demo.databases import Kind, opened, session
from cdcflow.cli.demo.writer import Writer

AIRPORTS = "2d5c66a8a1ddc420d7.2d0474be378d158da1"
"""The hash of the table that nobody writes to: the same text of the same rows, by three servers."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mysql),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_every_database_of_the_demo_is_loaded_written_to_and_counted(kind: Kind) -> None:
    """The proof at the demo's end compares hashes: two servers that hold the same rows must say the same."""
    with opened(kind) as source:
        loaded = source.load(2_000)
        assert loaded == {"airlines": 16, "airports": 1458, "planes": 3322, "weather": 26115, "flights": 2000}
        begin = source.end()
        with contextlib.closing(session(source.url)) as writing:
            writer = Writer(writing, seed=7)
            for _ in range(60):
                writer.transaction()
        assert sum(writer.done.values()) == 60
        digests = {table: source.digest(table, source.columns(table)) for table in flights.TABLES}
        assert (digests["airports"].rows, digests["airports"].hash) == (1458, AIRPORTS)
        assert digests["planes"].rows > loaded["planes"]
        before = digests["planes"]
        source.execute(source.planted_fault)
        assert source.digest("planes", source.columns("planes")) != before
        assert not source.passed(None if kind != "postgres" else "0/0", source.end())
        assert begin != source.end()
