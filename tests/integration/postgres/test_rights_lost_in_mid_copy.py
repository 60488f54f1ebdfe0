"""Rights that go between a chunk's lock and its COPY: named with the very statement, as those that go before it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.postgres.controlled_source import Capture, MakeCapture

from cdcflow.errors import RightMissing
from cdcflow.sources.postgres import chunks

pytestmark = pytest.mark.postgres


@pytest.fixture
def hired(own_postgres: PostgresServer) -> Database:
    """A database with a table in two partitions, and a role that may read and replicate it."""
    made = own_postgres.create_database("hired")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    made.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (100)")
    made.execute('CREATE SCHEMA "other rooms"; CREATE TABLE "other rooms"."T2" PARTITION OF t DEFAULT')
    made.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 200) i")
    made.execute('CREATE ROLE "the clerk" LOGIN REPLICATION BYPASSRLS')
    made.execute('GRANT USAGE ON SCHEMA "other rooms" TO "the clerk"')
    made.execute('GRANT SELECT ON t, t1, "other rooms"."T2" TO "the clerk"')
    made.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    made.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
    return made


@pytest.fixture
def clerk(hired: Database, make_capture: MakeCapture) -> Capture:
    capture = make_capture(hired, url=hired.url_as("the%20clerk"), tables=["public.t"], publication="p")
    capture.prepare()
    return capture


@pytest.mark.parametrize(
    ("before", "meanwhile", "remedy"),
    [
        (
            "SELECT 1",
            'REVOKE SELECT ON t, t1, "other rooms"."T2" FROM "the clerk"',
            'run GRANT SELECT ON "public"."t", "public"."t1", "other rooms"."T2" TO "the clerk"',
        ),
        (
            'ALTER TABLE t1 ENABLE ROW LEVEL SECURITY; ALTER TABLE "other rooms"."T2" ENABLE ROW LEVEL SECURITY;'
            "CREATE POLICY few ON t1 USING (id < 10)",
            'ALTER ROLE "the clerk" NOBYPASSRLS',
            'run ALTER ROLE "the clerk" BYPASSRLS',
        ),
    ],
    ids=["select", "policies"],
)
def test_right_revoked_after_the_lock_is_named_with_its_statement(
    hired: Database, clerk: Capture, monkeypatch: pytest.MonkeyPatch, before: str, meanwhile: str, remedy: str
) -> None:
    """The lock is granted, the COPY is refused: what was printed named neither the schema nor the role."""
    hired.execute(before)
    planned = clerk.plan("public.t")
    look = chunks.PostgresChunks._look

    def and_then(self: chunks.PostgresChunks, *arguments: Any) -> Any:
        found = look(self, *arguments)
        hired.execute(meanwhile)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(chunks.PostgresChunks, "_look", and_then)
        with pytest.raises(RightMissing) as caught:
            clerk.read(planned)
    assert caught.value.remedy == remedy
    hired.execute(remedy.removeprefix("run "))
    assert len(clerk.rows("public.t")) == 200
