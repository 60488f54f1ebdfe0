"""What the demo needs of each database: it is loaded, written to, and counted alike, whichever it is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg
import pytest
from tests.servers.postgres import PostgresServer

from cdcflow.demo import flights, load
from cdcflow.demo.databases import Kind
from cdcflow.demo.source_choice import demo_source, seed, session
from cdcflow.demo.writer import Workload

AIRPORTS = "2d5c66a8a1ddc420d7.2d0474be378d158da1"
"""The hash of the table without writers: the same text of the same rows, by three servers."""


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mysql),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_every_database_of_the_demo_is_loaded_written_to_and_counted(kind: Kind) -> None:
    """The proof at the demo's end compares hashes: two servers that hold the same rows must return the same."""
    with demo_source(kind) as source:
        loaded = source.load(2_000)
        assert loaded == {"airlines": 16, "airports": 1458, "planes": 3322, "weather": 26115, "flights": 2000}
        begin = source.end()
        # Twice, like a load that is restarted.
        for _ in range(2):
            with contextlib.closing(session(source.url)) as writing:
                writer = Workload(writing, seed=7)
                for _ in range(40):
                    writer.transaction()
            assert sum(writer.done.values()) == 40
        digests = {table: source.digest(table, source.columns(table)) for table in flights.TABLES}
        assert (digests["airports"].rows, digests["airports"].hash) == (1458, AIRPORTS)
        assert digests["planes"].rows > loaded["planes"]
        before = digests["planes"]
        source.execute(source.planted_fault)
        assert source.digest("planes", source.columns("planes")) != before
        assert not source.has_reached(None if kind != "postgres" else "0/0", source.end())
        assert begin != source.end()
        assert seed(source.url, None, 2_000) == {}, "a complete seed stays unchanged"
        if kind != "postgres":
            source.execute("ALTER TABLE flights COMMENT = ''")
            assert seed(source.url, None, 2_000) == loaded, "an interrupted seed is repeated from scratch"
            assert source.digest("airports", source.columns("airports")).hash == AIRPORTS


def test_load_reads_its_password_from_a_file(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The dev stack passes passwords as files, so that no command line contains one."""
    own_postgres.execute("CREATE ROLE shop LOGIN PASSWORD 'right'")
    own_postgres.execute("CREATE DATABASE airports OWNER shop")
    own_postgres.write_hba("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
    url = own_postgres.url("airports", "shop")
    (tmp_path / "password").write_text("wrong\n")
    arguments = ["seed", url, f"--password-file={tmp_path / 'password'}", "--rows=50"]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        load.main(arguments)
    (tmp_path / "password").write_text("right\n")
    assert load.main(arguments) == 0
    assert own_postgres.execute("SELECT count(*) FROM flights", "airports") == [(50,)]
