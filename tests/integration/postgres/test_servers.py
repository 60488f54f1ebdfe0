"""Servers that are misconfigured, full, restored, or require a password: the error names each case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.postgres.controlled_source import LOG_ID, SLOT, MakeCapture

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.source import SourceHistory
from cdcflow.config import secret
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.position import Checkpoint

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(own_postgres: PostgresServer) -> Database:
    database = own_postgres.create_database("shop")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    return database


def troubles(findings: list[Finding]) -> dict[str, str]:
    """Problems: subject and text with remedy."""
    return {f.subject: f"{f.level}: {f.text}; {f.remedy}" for f in findings if f.level != "ok"}


def test_wal_level_is_checked_and_its_sql_named(shop: Database, make_capture: MakeCapture) -> None:
    """P73: also when it is changed back under a log that was captured already."""
    before = make_capture(shop).prepare()
    shop.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    shop.server.restart(wal_level="replica")
    for checkpoint in (Checkpoint(), before):
        with pytest.raises(ConfigurationError, match=r"ALTER SYSTEM SET wal_level = logical"):
            make_capture(shop).prepare(checkpoint)
    found = troubles(list(make_capture(shop).source.doctor()))
    assert "ALTER SYSTEM SET wal_level = logical" in found["wal_level"]


def test_standby_without_a_publication_is_refused(shop: Database, make_capture: MakeCapture) -> None:
    """Nothing can be created there: the statement for the primary is named."""
    shop.server.stop()
    signal = shop.server.data / "standby.signal"
    signal.touch()
    shop.server.start()
    with pytest.raises(ConfigurationError, match="is a standby"):
        make_capture(shop).prepare()
    found = troubles(list(make_capture(shop).source.doctor()))
    assert "on the primary: run CREATE PUBLICATION" in found["publication cdcflow"]


def test_server_without_room_for_a_slot_is_reported(shop: Database, make_capture: MakeCapture) -> None:
    """P72: the limit is named; so is the way to more."""
    shop.server.restart(max_replication_slots="1", max_wal_senders="1")
    shop.execute("SELECT pg_create_physical_replication_slot('other')")
    with pytest.raises(ConfigurationError, match=r"(?s)no room for another slot.*max_replication_slots"):
        make_capture(shop).prepare()
    found = troubles(list(make_capture(shop).source.doctor()))
    assert "all 1 are in use" in found["max_replication_slots"]
    shop.execute("SELECT pg_drop_replication_slot('other')")
    first = make_capture(shop)
    checkpoint = first.prepare()
    first.events()
    with pytest.raises(SourceUnavailable, match=r"(?s)every WAL sender is in use.*max_wal_senders"):
        make_capture(shop).prepare(checkpoint)


def test_invalidated_slot_is_history_lost_with_the_gap(shop: Database, make_capture: MakeCapture) -> None:
    """P36: the server removed cdcflow's log; only an operator's command creates a new position."""
    before = make_capture(shop).prepare()
    shop.server.reload(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    for _ in range(4):
        shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000)) FROM generate_series(1, 20)")
        shop.execute("SELECT pg_switch_wal(); CHECKPOINT")
    assert shop.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
    capture = make_capture(shop)
    assert capture.source.status(before.position).is_lost
    with pytest.raises(HistoryLost, match=rf"slot {SLOT} was invalidated .* the log since {before.position} is gone"):
        capture.prepare(before)
    capture.prepare(before, accept_history_loss=True)
    assert capture.history is SourceHistory.LOST


def test_copied_data_directory_on_another_timeline_is_detected(shop: Database, make_capture: MakeCapture) -> None:
    """P43: a promoted copy has the same identity and names, and another timeline."""
    before = make_capture(shop).prepare()
    shop.server.stop()
    (shop.server.data / "standby.signal").touch()
    shop.server.start()
    shop.execute("SELECT pg_promote()")
    capture = make_capture(shop)
    assert capture.source.identity().timeline == "2"
    with pytest.raises(HistoryLost, match="timeline 1 to 2"):
        capture.prepare(before)


def test_failover_slot_continues_on_the_new_timeline(shop: Database, make_capture: MakeCapture) -> None:
    """P44: the server left the timeline after cdcflow's position, and the slot was carried over; nothing is missing.
    Whether the server still calls it synchronised records how it got there, not what it sends.
    """
    capture = make_capture(shop, failover=True)
    before = capture.prepare()
    shop.execute("INSERT INTO items VALUES (1, 'before')")
    assert [r["id"] for r in capture.changes()] == [1]
    capture.close()
    shop.server.stop()
    (shop.server.data / "standby.signal").touch()
    shop.server.start()
    shop.execute("SELECT pg_promote()")
    shop.execute("INSERT INTO items VALUES (2, 'after')")
    assert shop.execute("SELECT failover, synced FROM pg_replication_slots") == [(True, False)]
    after = make_capture(shop, failover=True)
    prepared = after.prepare(before)
    assert (before.source["timeline"], prepared.source["timeline"]) == ("1", "2")
    assert [r["id"] for r in after.changes()] == [1, 2]


@pytest.fixture
def guarded(shop: Database) -> Iterator[Database]:
    """A server that requires a password for the role `cdc`."""
    shop.execute("CREATE ROLE cdc LOGIN SUPERUSER PASSWORD 'first secret'")
    shop.server.write_hba(
        "host all cdc 127.0.0.1/32 scram-sha-256",
        "host replication cdc 127.0.0.1/32 scram-sha-256",
        "host all postgres 127.0.0.1/32 trust",
    )
    yield shop
    shop.server.write_hba()


def test_rotated_password_is_picked_up_and_never_shown(guarded: Database, make_capture: MakeCapture) -> None:
    """P65, S03: a refused password is tried again with the secret resolved again; no message ever contains it."""
    secrets = ["first secret"]
    capture = make_capture(guarded, url=guarded.url_as("cdc"), secret=lambda: secrets[-1])
    before = capture.prepare()
    guarded.execute("ALTER ROLE cdc PASSWORD 'second secret'")
    with pytest.raises(SourceUnavailable, match="the password of cdc is refused") as refused:
        make_capture(guarded, url=guarded.url_as("cdc"), secret=lambda: secrets[-1]).prepare(before)
    assert "secret" not in str(refused.value).replace("source.password", "")
    secrets.append("second secret")
    assert capture.source.prepare(before, LOG_ID).checkpoint == before
    with pytest.raises(SourceUnavailable, match="is refused"):
        make_capture(guarded, url=guarded.url_as("cdc")).prepare()


def test_login_without_a_password_is_answered_with_the_missing_setting(
    guarded: Database, make_capture: MakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commonest first error; it named a setting that was not in the file. The remedy's setting lets in."""
    where = f"connecting to 127.0.0.1:{guarded.server.port}/shop"
    without = make_capture(guarded, url=guarded.url_as("cdc"))
    for found, given in (("cdc is refused without a password", None), ("the password of cdc is refused", "wrong")):
        if given is not None:
            monkeypatch.setenv("PGPASSWORD", given)
        with pytest.raises(SourceUnavailable) as refused:
            without.prepare()
        assert str(refused.value) == (
            f"{where}: {found}, and source.password is not set\n"
            "  set source.password: ${env:NAME} or ${file:path} (without it ~/.pgpass and PGPASSWORD are used)"
        )
    monkeypatch.setenv("SHOP_PASSWORD", "first secret")
    make_capture(guarded, url=guarded.url_as("cdc"), secret=lambda: secret("${env:SHOP_PASSWORD}")).prepare()


def test_rejected_host_is_named(guarded: Database, make_capture: MakeCapture) -> None:
    """P65: pg_hba.conf often has a line for databases and none for replication."""
    guarded.server.write_hba("host replication all 127.0.0.1/32 reject", "host all all 127.0.0.1/32 trust")
    found = make_capture(guarded).source.doctor()
    assert not [f for f in found if f.subject == "connection" and f.level == "error"]
    guarded.server.write_hba("host all cdc 127.0.0.1/32 trust")
    with pytest.raises(SourceUnavailable, match=r"pg_hba\.conf"):
        make_capture(guarded).prepare()


def test_minimal_role_is_enough_from_end_to_end(shop: Database, make_capture: MakeCapture) -> None:
    """S08: what docs/postgres.md requires of an administrator, and nothing else."""
    shop.execute("CREATE ROLE cdc LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO cdc")
    shop.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO cdc")
    refused = make_capture(shop, url=shop.url_as("cdc"))
    with pytest.raises(ConfigurationError, match="run as an owner: CREATE PUBLICATION") as error:
        refused.prepare()
    # The very SQL of the message, run by an owner.
    statement = str(error.value).split("run as an owner: ")[1].replace(SLOT, "cdcflow")
    shop.execute(statement)
    capture = make_capture(shop, url=shop.url_as("cdc"), publication="cdcflow")
    problems = [f for f in capture.source.doctor() if f.level == "error"]
    assert problems == []
    before = capture.prepare()
    shop.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["_op"] for r in capture.changes()] == ["c"]
    assert [r["_op"] for r in capture.rows("public.items")] == ["r"]
    capture.chunks.heartbeat()
    assert int(capture.source.status(None).details["catalog_xmin_age"]) >= 0
    capture.close()
    make_capture(shop, url=shop.url_as("cdc"), publication="cdcflow").prepare(before)


def test_owner_of_the_tables_gets_the_grant_that_lets_it_create_the_publication(
    shop: Database, make_capture: MakeCapture
) -> None:
    """S08: a role that owns its tables lacks one right only; the message names it, and it is enough."""
    shop.execute(
        "CREATE ROLE cdc LOGIN REPLICATION; ALTER TABLE items OWNER TO cdc; GRANT USAGE ON SCHEMA public TO cdc"
    )
    capture = make_capture(shop, url=shop.url_as("cdc"))
    (of_doctor,) = [f for f in capture.source.doctor() if f.subject == "publication"]
    assert str(of_doctor.remedy).startswith(
        'run GRANT CREATE ON DATABASE "shop" TO "cdc"; or run as an owner of the tables: CREATE PUBLICATION "cdcflow"'
    )
    with pytest.raises(ConfigurationError, match="run as an owner: CREATE PUBLICATION") as refused:
        capture.prepare()
    grant = str(refused.value.remedy).split("run ")[1].split(", if")[0]
    assert grant == 'GRANT CREATE ON DATABASE "shop" TO "cdc"'
    shop.execute(grant)
    capture.prepare()


def test_doctor_names_every_missing_right_with_its_sql(shop: Database, make_capture: MakeCapture) -> None:
    """P65, P66, S08: one check, everything that is missing, the SQL for each."""
    shop.execute("CREATE ROLE nobody_yet LOGIN; CREATE SCHEMA closed; CREATE TABLE closed.c (id int PRIMARY KEY)")
    shop.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    shop.execute("CREATE TABLE bad (id int); CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    shop.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p DEFAULT")
    shop.execute("CREATE TABLE bag (a int); ALTER TABLE bag REPLICA IDENTITY FULL")
    shop.execute("CREATE TABLE g (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) STORED)")
    capture = make_capture(shop, url=shop.url_as("nobody_yet"), tables=["public.*", "closed.*"])
    found = [f"{f.level} {f.subject}: {f.text}; {f.remedy}" for f in capture.source.doctor()]
    text = "\n".join(found)
    for claim in (
        'error role: nobody_yet may not replicate; run ALTER ROLE "nobody_yet" REPLICATION',
        'error closed.c: the role has no USAGE on its schema; run GRANT USAGE ON SCHEMA "closed" TO "nobody_yet"',
        'error public.items: the role may not read it; run GRANT SELECT ON "public"."items" TO "nobody_yet"',
        "error public.items: row-level security would hide rows from the backfill; "
        'run ALTER ROLE "nobody_yet" BYPASSRLS',
        "error public.bad: public.bad has no primary key",
        "warning tables: not captured: public.u is UNLOGGED",
        "warning public.p: is partitioned: TRUNCATE",
        "warning public.bag: has no key",
        "error publication: nobody_yet may not create one in database shop; "
        "run as an owner of the tables: CREATE PUBLICATION",
        'or make nobody_yet their owner and run GRANT CREATE ON DATABASE "shop" TO "nobody_yet"',
        "warning max_slot_wal_keep_size: is unlimited",
        'error public.p1: the role may not read it; run GRANT SELECT ON "public"."p1" TO "nobody_yet"',
    ):
        assert claim in text, text
    assert "secret" not in text


def test_doctor_is_content_with_a_good_setup(shop: Database, make_capture: MakeCapture) -> None:
    """A clean bill for what works, so that a warning means something."""
    shop.server.reload(max_slot_wal_keep_size="10GB")
    shop.execute("CREATE ROLE cdc LOGIN REPLICATION; GRANT SELECT ON ALL TABLES IN SCHEMA public TO cdc")
    shop.execute("CREATE PUBLICATION cdcflow FOR TABLE items WITH (publish_via_partition_root)")
    if shop.server.version >= 180000:
        shop.execute("ALTER PUBLICATION cdcflow SET (publish_generated_columns = stored)")
    capture = make_capture(shop, url=shop.url_as("cdc"), publication="cdcflow", slot="made_by_us")
    assert troubles(list(capture.source.doctor())) == {}
    capture.prepare()
    assert troubles(list(capture.source.doctor())) == {}


def test_doctor_reports_what_it_cannot_reach(make_capture: MakeCapture, shop: Database) -> None:
    """A server that is down is a finding, not a traceback."""
    (finding,) = make_capture(shop, url="postgresql://x@127.0.0.1:1/db").source.doctor()
    assert (finding.level, finding.subject) == ("error", "connection")
    (finding,) = make_capture(shop, url=shop.server.url("absent")).source.doctor()
    assert 'database "absent" does not exist' in finding.text


def test_plaintext_to_another_host_is_warned_of(shop: Database, make_capture: MakeCapture) -> None:
    """S02: rows and password in plain text; and if required encryption is not offered, the connection is refused."""
    url = f"postgresql://postgres@localhost.localdomain:{shop.server.port}/shop?hostaddr=127.0.0.1"
    found = troubles(list(make_capture(shop, url=url).source.doctor()))
    assert "unencrypted" in found["connection"]
    with pytest.raises(ConfigurationError, match="no secure connection"):
        make_capture(shop, url=f"{url}&sslmode=require").prepare()


def test_status_reports_lag_and_what_the_server_keeps(shop: Database, make_capture: MakeCapture) -> None:
    """O14, O15: a slot that holds back log and vacuum must be seen before the disk is full."""
    capture = make_capture(shop)
    assert capture.source.status(None).details["slot"] == "none"
    before = capture.prepare()
    shop.execute("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 1000) i")
    status = capture.source.status(before.position)
    assert status.lag_bytes is not None
    assert status.lag_bytes > 50_000
    assert status.retained_bytes is not None
    assert status.retained_bytes >= status.lag_bytes
    assert status.details["wal_status"] == "reserved"
    assert status.details["slot"] == SLOT
