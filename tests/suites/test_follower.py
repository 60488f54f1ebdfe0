"""What a run over PostgreSQL's suite would report, on databases created for it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from tests.ddlfuzz.execute import Failure
from tests.servers.postgres import PostgresServer
from tests.suites.follower import Follower
from tests.suites.onpostgres import OnRegression

from cdcflow.model.table import TableId

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(300)]


@pytest.fixture
def follower() -> Iterator[Follower]:
    with PostgresServer() as server:
        on = OnRegression(server)
        following = Follower("postgres", on, "running", random.Random(1))
        on.execute("CREATE TABLE public.kept (id int PRIMARY KEY, name text)")
        following.start()
        following.compare()
        try:
            yield following
        finally:
            following.close()
            on.close()


def test_a_change_that_the_log_does_not_have_is_found(follower: Follower) -> None:
    """A comparison that cannot fail proves nothing, also when it reads only what was added to the log."""
    follower.on.execute("INSERT INTO public.kept VALUES (1, 'one'), (2, 'two')")
    follower.compare()
    follower.on.execute("UPDATE public.kept SET name = 'three' WHERE id = 2")
    follower.compare()
    assert follower.compared >= 2

    follower.logged._changes[TableId("public", "kept")].pop()

    with pytest.raises(Failure, match="1 rows in the log only, 1 in the source only"):
        follower.compare()


def test_a_table_that_a_remedy_brings_back_is_no_failure(follower: Follower) -> None:
    """The doctor's warnings about a table are not why it is skipped: the daemon has only not polled yet."""
    follower.on.execute("CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler")
    follower.on.execute("CREATE TABLE public.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for number in range(3):
        bounds = f"FROM ({number * 10}) TO ({number * 10 + 10})"
        follower.on.execute(
            f"CREATE TABLE public.part_{number} PARTITION OF public.parted FOR VALUES {bounds} USING heap2"
        )
    follower.on.execute("INSERT INTO public.parted SELECT generate_series(0, 29)")

    follower.compare()

    assert sum("stored by heap2" in stop for stop in follower.outcome.stops) == len(follower.outcome.stops) == 3


def test_table_recreated_under_its_name_is_awaited(follower: Follower) -> None:
    """The daemon learns of it by its next poll of the catalog; before, the log has the previous table's rows."""
    follower.on.execute("INSERT INTO public.kept VALUES (1, 'one'), (2, 'two')")
    follower.compare()
    follower.on.execute("DROP TABLE public.kept")
    follower.on.execute("CREATE TABLE public.kept (id int PRIMARY KEY, name text)")
    follower.on.execute("INSERT INTO public.kept VALUES (1, 'another')")

    follower.compare()


def test_a_remedy_is_repeated_only_after_a_read_of_the_list(follower: Follower) -> None:
    """A daemon reports tables as of its last read of the list: repeated at once, a remedy that helps seems to fail."""
    follower.on.execute("CREATE TABLE public.silent (id int PRIMARY KEY)")
    follower.on.execute("ALTER TABLE public.silent REPLICA IDENTITY NOTHING")
    follower.on.execute("CREATE TABLE public.freed_at AS SELECT clock_timestamp() + interval '12 s' AS moment")
    follower.on.execute(
        "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF clock_timestamp() < (SELECT moment FROM public.freed_at) THEN RAISE EXCEPTION 'not yet'; END IF; END $$"
    )
    follower.on.execute(
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION public.refuse()"
    )

    follower.compare()

    remedies = [stop for stop in follower.outcome.stops if "public.silent" in stop]
    assert 1 <= len(remedies) <= 4


def test_columns_that_the_server_does_not_publish_are_not_awaited(postgres_server: PostgresServer) -> None:
    """Before PostgreSQL 18 no generated column is in the log, and from then on the stored ones are."""
    on = OnRegression(postgres_server)
    try:
        on.execute("CREATE TABLE public.made (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)")
        published = ["a", "b"] if postgres_server.version >= 180000 else ["a"]
        assert on.columns() == {TableId("public", "made"): published}
    finally:
        on.close()
        postgres_server.execute("DROP DATABASE regression")


def test_a_server_whose_processes_were_ended_is_compared_further(follower: Follower) -> None:
    """A later suite can end a process of an earlier release; the server then restarts all. No failure of capture."""
    follower.on.execute("INSERT INTO public.kept VALUES (1, 'one')")
    before = follower.compared
    (pid,) = follower.on.ask("SELECT pg_catalog.pg_backend_pid()")[0]

    os.kill(pid, signal.SIGKILL)
    follower.compare()

    assert follower.compared > before
