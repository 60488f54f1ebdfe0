"""The shadow check on a real server: every type, while writers keep writing, and with a faulty decoder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.postgres import Database
from tests.support.capture.shadow_checks import checks, differences, until_checked, until_different
from tests.support.capture.watched_capture import Watched
from tests.support.capture.wrong_decoder import make_wrong, wrong_in
from tests.support.publish import debezium

from cdcflow.capture import shadow as shadows
from cdcflow.sources.postgres.stream import PostgresStream

pytestmark = pytest.mark.postgres


def watched(folder: Path, database: Database, *tables: str) -> Watched:
    source = {"kind": "postgres", "url": database.url, "tables": list(tables)}
    return Watched(folder, source, shadow_every="10ms", freshness_every="1h")


@pytest.mark.spread(1)
def test_rows_of_all_types_are_checked_and_no_type_is_blamed(database: Database, tmp_path: Path) -> None:
    """Each row is changed by itself, so it is the one that is read: at the edges of each type, by both of its ways."""
    setup, changes = (debezium.statements(name) for name in ("tables", "changes"))
    for statement in (*setup, *(s for s in changes if s.startswith(("INSERT INTO v", "INSERT INTO r")))):
        database.execute(statement)
    database.execute("ALTER TABLE v ADD COLUMN added text DEFAULT 'of older rows'")
    changed = [("v", id_) for (id_,) in database.execute("SELECT id FROM v")] + [("r", 1)]
    assert len(changed) > 4
    with watched(tmp_path, database, "public.v", "public.r") as on:
        on.until(lambda s: {t["state"] for t in s.get("tables", {}).values()} == {"done"}, "the backfill")
        for table, id_ in changed:
            before = checks({"counts": on.capture.counts()})
            until_checked(on, partial(database.execute, f"UPDATE {table} SET id = id WHERE id = {id_}"), before + 2)
    assert on.error is None
    assert differences(on) == []


@pytest.mark.spread(1)
def test_nothing_is_blamed_while_writers_continue(database: Database, tmp_path: Path) -> None:
    """Updates, deletes, key changes, truncates, rewrites and rolled back transactions of the rows that are read."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, f float8); CREATE TABLE u (id int PRIMARY KEY, v int)"
    )
    acts = (
        "INSERT INTO t SELECT i, md5(i::text), random() FROM generate_series(1, 20) i ON CONFLICT DO NOTHING",
        "UPDATE t SET f = random() WHERE id <= 10",
        "INSERT INTO u SELECT i, i FROM generate_series(1, 5) i ON CONFLICT (id) DO UPDATE SET v = u.v + 1",
        "UPDATE t SET id = -id WHERE id = 7",
        "DELETE FROM t WHERE id = -7 OR id = 3",
        "BEGIN; UPDATE t SET v = 'no'; ROLLBACK",
        "UPDATE u SET v = v + 1",
        "ALTER TABLE u ALTER COLUMN v TYPE int USING v + 100",
        "UPDATE t SET v = md5(v) WHERE id = 1",
        "TRUNCATE u",
    )
    with watched(tmp_path, database, "public.t", "public.u") as on:
        on.until(lambda s: {t["state"] for t in s.get("tables", {}).values()} == {"done"}, "the backfill")
        for act in acts * 15:
            database.execute(act)
        until_checked(on, partial(database.execute, "UPDATE t SET f = f WHERE id = 2"), 21)
    assert on.error is None
    assert differences(on) == []


def test_commit_that_no_session_can_see_yet_is_never_blamed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W03: it waits for a replica, and the stream has it. The row is read again until it can be seen."""
    monkeypatch.setattr(shadows, "AGAIN_S", 0.01)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'before')")
    with watched(tmp_path, database, "public.t") as on:
        on.until(lambda s: s["tables"].get("public.t", {}).get("state") == "done", "the backfill")

        def is_hidden(_: object) -> bool:
            shadow = on.capture._shadow
            return shadow is not None and shadow._sample is not None and shadow._sample.reads > 2

        with ThreadPoolExecutor(1) as committing, database.server.holding_commits():
            held = committing.submit(database.execute, "UPDATE t SET v = 'after'")
            on.until(is_hidden, "the row to be read in vain")
            assert on.capture.counts()["shadow_checks"] == 0
            assert not held.done()
        on.until(checks, "the check")
    assert on.error is None
    assert differences(on) == []


def test_a_decoder_that_errs_is_found(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the status, the metrics and an event, none of which has a value of the row; until the table is read again."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2)); INSERT INTO t VALUES (1, 'a', 1)")
    with watched(tmp_path, database, "public.t") as on:
        on.until(lambda s: s["tables"].get("public.t", {}).get("state") == "done", "the backfill")
        database.execute("UPDATE t SET v = 'secret', n = 7.25")
        on.until(checks, "a check of what is right")
        assert differences(on) == []

        def last_digit(values: pa.Array) -> pa.Array:
            return pa.array([None if v is None else v + v / v / 100 for v in values.to_pylist()]).cast(values.type)

        make_wrong(monkeypatch, PostgresStream, wrong_in("n", last_digit))
        found = until_different(on, partial(database.execute, "UPDATE t SET v = 'secret'"), "public.t")
        page = on.metrics(found)
        monkeypatch.undo()
        on.capture.request("backfill", ["public.t"])
        on.until(lambda s: s["tables"]["public.t"]["generation"] == 2, "the backfill")
        on.until(lambda s: "shadow_difference" not in s["tables"]["public.t"], "the status to be good again")
    assert page["cdcflow_shadow_differences_total"] >= 1
    fields = differences(on)[0]
    assert (fields["table"], fields["columns"]) == ("public.t", "n")
    said = str(fields) + str(found["tables"])
    assert "secret" not in said
    assert "7.2" not in said
    assert on.error is None
