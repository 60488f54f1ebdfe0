"""Captured tables under other names: renamed, moved, swapped."""

from __future__ import annotations

import pytest
from tests.servers.postgres import Database
from tests.support.postgres.controlled_source import MakeCapture

from cdcflow.errors import SourceUnavailable

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    ("away", "back", "meanwhile"),
    [
        ("ALTER TABLE items RENAME TO other", "ALTER TABLE other RENAME TO items", "public.other"),
        ("ALTER TABLE items SET SCHEMA aside", "ALTER TABLE aside.items SET SCHEMA public", "aside.items"),
        ("ALTER SCHEMA public RENAME TO other", "ALTER SCHEMA other RENAME TO public", "other.items"),
    ],
    ids=["table renamed", "table moved", "schema renamed"],
)
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_changes_of_a_table_under_another_name_are_still_its_own(
    database: Database, make_capture: MakeCapture, away: str, back: str, meanwhile: str, running: bool
) -> None:
    """A Relation message has the table's name of that time. A table is identified by its OID, and has the name
    under which it is captured.
    """
    database.execute("CREATE SCHEMA aside; CREATE TABLE items (id int PRIMARY KEY)")
    capture = make_capture(database, tables=["*.*"])
    before = capture.prepare()
    seen = [r["id"] for r in capture.changes()] if running else []
    database.execute("INSERT INTO items VALUES (1)")
    database.execute(away)
    database.execute(f"INSERT INTO {meanwhile} VALUES (2)")
    if running:
        seen += [r["id"] for r in capture.changes("public.items")]
    database.execute(back)
    database.execute("INSERT INTO items VALUES (3)")
    if not running:
        capture.close()
        capture = make_capture(database, tables=["*.*"])
        capture.prepare(before)
    seen += [r["id"] for r in capture.changes("public.items")]
    assert seen == [1, 2, 3]


def test_table_renamed_to_a_name_that_is_not_selected_brings_nothing_under_it(
    database: Database, make_capture: MakeCapture
) -> None:
    """Tables that the settings exclude are not in the log, whatever a captured table is renamed to, running or
    stopped.
    """
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture = make_capture(database, tables=["public.i*"])
    before = capture.prepare()
    database.execute("ALTER TABLE items RENAME TO audit")
    database.execute("INSERT INTO audit VALUES (1)")
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    assert [str(b.table.id) for b in capture.batches()] == ["public.items"]
    capture.close()
    again = make_capture(database, tables=["public.i*"])
    again.prepare(before)
    database.execute("INSERT INTO items VALUES (1)")
    captured = again.shape("public.items").incarnation
    found = [(str(b.table.id), b.table.incarnation == captured) for b in again.batches()]
    assert found == [("public.items", True)]  # the renamed one is no longer selected


@pytest.mark.parametrize(
    "made",
    ["ALTER TABLE items RENAME TO old; CREATE TABLE items (id int PRIMARY KEY)", "ALTER TABLE items RENAME TO old"],
    ids=["another of its name", "none"],
)
def test_table_that_took_a_captured_name_is_not_read_before_it_is_captured(
    database: Database, make_capture: MakeCapture, made: str
) -> None:
    """Its changes arrive only once a check of the tables has added it; rows that were read before would miss them."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture = make_capture(database)
    before = capture.prepare()
    for statement in made.split(";"):
        database.execute(statement)
    with pytest.raises(SourceUnavailable, match=r"table public\.items was renamed"):
        capture.plan("public.items")
    again = make_capture(database)
    again.prepare(before)
    for table in again.source.tables():
        assert again.plan(str(table.id)).shape == table


def test_table_recreated_under_a_captured_name_is_not_read_before_it_is_captured(
    database: Database, make_capture: MakeCapture
) -> None:
    """The publication does not have it before the next check; a backfill that began now would miss its changes."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture = make_capture(database)
    before = capture.prepare()
    database.execute("DROP TABLE items")
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with pytest.raises(SourceUnavailable, match=r"table public\.items was replaced by another"):
        capture.plan("public.items")
    again = make_capture(database)
    again.prepare(before)
    assert again.plan("public.items").shape == again.shape("public.items")
