"""A database that is renamed, or replaced by another database: what stops, and whether the remedy ends it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.servers.postgres import Database, PostgresServer, binaries, upgrade
from tests.support.daemon.bank import Bank

from cdcflow.demo.servers import postgres
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.wiring.findings import continues

pytestmark = pytest.mark.postgres


def begun(bank: Bank) -> None:
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
    bank.write(seed=1, transactions=5)


def followed(bank: Bank, *, accepted: bool = False) -> None:
    """Capture up to the source's end, and compare."""
    ((server,),) = bank.database.execute("SELECT system_identifier::text FROM pg_control_system()")
    name = bank.database.name

    def is_there() -> bool:
        # Positions of another server mean nothing.
        source = bank.reader.newest_checkpoint().source if bank.reader.exists() else {}
        is_of_it = (source.get("system_id"), source.get("database")) == (server, name)
        return is_of_it and source.get("history") is None and bank.has_reached(fence)

    with bank.capturing(accept_history_loss=accepted):
        fence = bank.fence()
        bank.wait_until(is_there, "the source's end")
    bank.assert_log_equals_source()


def at(bank: Bank, name: str, server: PostgresServer | None = None) -> None:
    """Point the settings at another database, of the same server or another."""
    bank.database = Database(server or bank.database.server, name)
    bank.configure()


def renamed(server: PostgresServer, name: str, to: str) -> None:
    server.execute(f"ALTER DATABASE {name} RENAME TO {to}")


def test_renamed_database_is_followed(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Its slot, its tables and its place in the server's log are the same: only the settings need the new name."""
    bank = Bank(own_postgres.create_database("shop"), tmp_path)
    begun(bank)
    renamed(own_postgres, "shop", "store")
    at(bank, "store")
    followed(bank)
    renamed(own_postgres, "store", "shop")
    at(bank, "shop")
    followed(bank)


def test_another_database_under_the_old_name_is_refused_and_both_remedies_work(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """The two remedies once pointed at each other. One of them continues, the other begins with the new database."""
    bank = Bank(own_postgres.create_database("shop"), tmp_path)
    begun(bank)
    renamed(own_postgres, "shop", "shop_old")
    Bank(own_postgres.create_database("shop"), tmp_path)
    for accepted in (False, True):
        with pytest.raises(ConfigurationError, match="belongs to database shop_old, which its slot") as stopped:
            bank.capture_to_its_end(accept_history_loss=accepted)
    remedy = str(stopped.value)
    assert "set source.url to database shop_old" in remedy
    assert any("shop_old" in f.text for f in continues(bank.configure()) if f.level == "error")
    at(bank, "shop_old")
    followed(bank)
    at(bank, "shop")
    statement = re.search(r"connect to shop_old and run (SELECT pg_drop_replication_slot\('\w+'\))", remedy)
    assert statement is not None
    own_postgres.execute(statement[1], "shop_old")
    with pytest.raises(ConfigurationError, match=r"--accept-history-loss"):
        bank.capture_to_its_end()
    followed(bank, accepted=True)


def test_database_restored_from_a_dump_is_adopted_by_the_printed_remedy(
    own_postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server, other table OIDs, positions that go back: the log continues with it, and all tables are read
    again.
    """
    bank = Bank(own_postgres.create_database("shop"), tmp_path)
    own_postgres.execute("CREATE TABLE dropped (); DROP TABLE dropped", "shop")
    begun(bank)
    # Servers of one template have one identity: this one is of another.
    monkeypatch.setattr(postgres, "_TEMPLATES", postgres._Templates())
    with PostgresServer() as other:
        moved = Bank(other.create_database("shop"), tmp_path)
        moved.write(seed=2, transactions=5)
        with pytest.raises(ConfigurationError, match=r"it belongs to(.|\n)*run `cdcflow run --accept-history-loss`"):
            moved.capture_to_its_end()
        followed(moved, accepted=True)
        followed(moved)
        elsewhere = Bank(other.create_database("elsewhere"), tmp_path)
        for accepted in (False, True):
            with pytest.raises(ConfigurationError, match="this log belongs to"):
                elsewhere.capture_to_its_end(accept_history_loss=accepted)


@pytest.mark.long
@pytest.mark.parametrize("version", sorted(set(binaries()) - {"wheel", "named"}))
def test_upgraded_server_is_adopted_by_the_printed_remedy(version: str, tmp_path: Path) -> None:
    """pg_upgrade gives the server another identity and other positions, and tables keep their numbers."""
    with PostgresServer(binaries()[version]) as old, PostgresServer() as new:
        bank = Bank(old.create_database("shop"), tmp_path)
        followed(bank)
        upgrade(old, new)
        at(bank, "shop", new)
        bank.write(seed=2, transactions=5)
        # The state after pg_upgrade since 17: a slot of this name, at a position of the new server's.
        own = bank.reader.newest_checkpoint().source["slot"]
        new.execute(f"SELECT pg_create_logical_replication_slot('{own}', 'pgoutput')", "shop")
        with pytest.raises(ConfigurationError, match=r"it belongs to(.|\n)*run `cdcflow run --accept-history-loss`"):
            bank.capture_to_its_end()
        followed(bank, accepted=True)
        followed(bank)


def test_dropped_and_recreated_database_is_a_loss(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """With the daemon stopped the server drops the slot with its database, and refuses nothing."""
    bank = Bank(own_postgres.create_database("shop"), tmp_path)
    begun(bank)
    own_postgres.execute("DROP DATABASE shop")
    bank = Bank(own_postgres.create_database("shop"), tmp_path)
    with pytest.raises(HistoryLost, match="--accept-history-loss"):
        bank.capture_to_its_end()
    followed(bank, accepted=True)
