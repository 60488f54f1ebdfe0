"""A table that was loaded another way is attached: only the rows that differ are read."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from tests.servers.mysql import MySQLDatabase
from tests.servers.objects import ObjectServer
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until
from tests.support.tables.catalogs import catalog_of
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import local
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.fold.completeness import IN_DOUBT, TableBackfill
from cdcflow.log.read.reader import read_rows
from cdcflow.model.change import READ
from cdcflow.model.table import OP, TableId
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.local.attached_tables import Attaching
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.segments import backfills, sealed_range

ROWS = 400
LONG = "x" * 20_000
"""So long that PostgreSQL stores it out of line, and does not send it when it is unchanged."""
NAMES = ("id", "name", "note")

Fetch = Callable[[], list[tuple[Any, ...]]]


class Taken:
    """A shop whose table is still being read when its base is attached. `fetch` queries the source itself."""

    def __init__(self, shop: ComparedShop, fetch: Fetch) -> None:
        self.shop = shop
        self.fetch = fetch
        self.name = f"{shop.schema}.items"
        self.path = shop.folder / "loaded"
        self.place = str(self.path)
        rows = ", ".join(f"({n}, 'name {n}', '{n} {LONG if n % 50 == 0 else ''}')" for n in range(ROWS))
        shop.execute(
            f"CREATE TABLE items (id int PRIMARY KEY, name varchar(40), note {self.text})",
            *(["ALTER TABLE items ALTER note SET STORAGE EXTERNAL"] if shop.schema == "public" else []),
            f"INSERT INTO items VALUES {rows}",
        )

    @property
    def text(self) -> str:
        return "text" if self.shop.schema == "public" else "mediumtext"

    def dump(self) -> pa.Table:
        """The source's rows, as another tool loads them."""
        found = self.fetch()
        types = (pa.int32(), pa.string(), pa.large_string())
        return pa.table([pa.array(c, t) for c, t in zip(zip(*found, strict=True), types, strict=True)], names=NAMES)

    def as_parquet(self, rows: pa.Table) -> None:
        self.path.mkdir()
        half = len(rows) // 2
        for number, part in enumerate((rows.slice(0, half), rows.slice(half))):
            pq.write_table(part, self.path / f"part-{number}.parquet")

    def start(self, rate: int = 5) -> None:
        """Begin to capture, so slowly that the backfill does not end in the meantime."""
        self.shop.settings["source"]["backfill"] = {"rows_per_second_max": rate, "chunk_rows_max": 20}
        self.shop.write()
        self.shop.start()
        self.shop.wait_until(lambda status: status["tables"][self.name]["state"] == "reading", "reading")

    def attach(self, *arguments: str) -> str:
        return self.shop.said("attach", self.name, "--from", self.place, *arguments)

    def wait_until_sealed(self) -> None:
        """Until a merge knows that the table has a base."""

        def is_sealed() -> bool:
            log = sealed_range(self.shop.folder / "log")
            return log.newest is not None and bool(TableBackfill.of(backfills(log)[self.name]).base)

        wait_until(is_sealed, "a merge to know the base")

    def wait_until_captured(self, name: str) -> None:
        """Until a change that set this name is sealed."""

        def is_sealed() -> bool:
            files = sealed_range(self.shop.folder / "log").files(TableId(self.shop.schema, "items"), 0)
            names = (pq.read_table(file.path, columns=["name"]).column(0).to_pylist() for file in files)
            return any(name in found for found in names)

        wait_until(is_sealed, f"{name} to be captured")

    def entry(self) -> dict[str, Any]:
        status = json.loads(self.shop.said("status", "--json", code=None))
        found: dict[str, Any] = status["tables"][self.name]
        return found

    def read_into_the_log(self) -> int:
        """Rows that chunks have brought."""
        found = read_rows(self.shop.folder / "log", tables={TableId(self.shop.schema, "items")})
        return sum(pc.sum(pc.equal(rows.column(OP), READ)).as_py() or 0 for _, _, rows in found)

    def is_shown(self, *, incomplete: bool = False) -> bool:
        return self.name in local.read_cut(self.shop.warehouse, incomplete=incomplete)

    def merge_in_doubt(self) -> None:
        """Merge until a cut shows the base, as unverified rows."""

        def is_published() -> bool:
            self.shop.merge()
            with contextlib.suppress(ConfigurationError):  # no segment is sealed yet
                assert not self.is_shown()
                return local.published_cut(self.shop.warehouse).tables[self.name].state == IN_DOUBT
            return False

        wait_until(is_published, "a cut that shows the base")

    def check_equal(self) -> None:
        """The merged table has the rows that the source has, by the test's own reads of both."""
        source = sorted(self.fetch())

        def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
            columns = [table.column(name).to_pylist() for name in NAMES]
            return sorted(zip(*columns, strict=True))

        merged = self.shop.merge_until("items", lambda table: rows_of(table) == source)
        assert merged.num_rows == len(source)


def on_postgres(shop: ComparedShop, database: Database) -> Taken:
    def fetch() -> list[tuple[Any, ...]]:
        with database.session() as connection:
            return connection.execute("SELECT id, name, note FROM items").fetchall()

    return Taken(shop, fetch)


@pytest.fixture
def postgres(postgres_shop: ComparedShop, database: Database) -> Taken:
    return on_postgres(postgres_shop, database)


@pytest.fixture
def taken(one_shop: ComparedShop, one_database: Database) -> Taken:
    return on_postgres(one_shop, one_database)


@pytest.fixture
def mysql(mysql_shop: ComparedShop, mysql_database: MySQLDatabase) -> Taken:
    def fetch() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in mysql_database.execute("SELECT id, name, note FROM items")]

    return Taken(mysql_shop, fetch)


# ── what agrees ─────────────────────────────────────────────────────────────────────────────────────────────────


def agrees(taken: Taken, format_: str, *arguments: str) -> None:
    shop = taken.shop
    shop.settings["merge"]["format"] = format_
    taken.start()
    said = taken.attach(*arguments)
    assert f"{taken.name}: {ROWS} rows of" in said
    assert ("loaded_by" in said) is not bool(arguments)
    assert f"cdcflow repair {taken.name}" in said
    read = taken.read_into_the_log()
    assert read < ROWS / 2
    found = taken.entry()
    assert (found["state"], found["gap"]["proven"], found["freshness"]) == ("done", None, "not proven")
    assert "attached" in shop.said("status", code=None)
    shop.execute("UPDATE items SET name = 'since' WHERE id = 3")
    shop.wait_until(lambda status: bool(status["tables"][taken.name]["gap"]["base"]), "its base")
    taken.merge_in_doubt()
    said = shop.said("repair", taken.name)
    assert "rows were read again" not in said
    assert f"{taken.name} is verified" in said
    assert shop.verify(code=0)["items/tables"]["verdict"] == "equal"
    taken.check_equal()
    assert taken.read_into_the_log() == read, "no row of what agrees is read"
    assert taken.entry()["gap"]["proven"] is not None
    assert shop.verify(code=0)["items/tables"]["verdict"] == "equal"


def with_another_column(taken: Taken) -> None:
    rows = taken.dump()
    taken.as_parquet(rows.append_column("loaded_by", pa.array(["spark"] * len(rows))))


@pytest.mark.spread(1)
def test_parquet_that_agrees_with_postgres_is_adopted_without_reading_a_row(postgres: Taken) -> None:
    """Reading a terabyte twice would be too expensive."""
    with_another_column(postgres)
    agrees(postgres, "delta")


def test_iceberg_table_is_built_from_parquet_that_agrees_without_reading_a_row(taken: Taken) -> None:
    """The same, in the other format."""
    with_another_column(taken)
    agrees(taken, "iceberg")


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_parquet_in_a_bucket_becomes_a_table_in_a_bucket(
    taken: Taken, one_server: PostgresServer, own_object_server: ObjectServer, table_format: str
) -> None:
    """The whole command, from `s3://` into `s3://`."""
    bucket = f"attached-{table_format}"
    objects = own_object_server.objects(bucket)
    given = objects.model_dump(mode="json", exclude_none=True)
    with_another_column(taken)
    for path in taken.path.iterdir():
        Bucket(objects).put(f"loaded/{path.name}", path.read_bytes())
    taken.place = f"s3://{bucket}/loaded"
    access = {name: given[name] for name in ("endpoint", "access_key", "secret_key")}
    with catalog_of("sql", "", one_server) as catalog:
        taken.shop.settings["merge"] |= {"warehouse": f"s3://{bucket}/ware", "objects": access}
        taken.shop.settings["merge"] |= {"catalog": catalog} if table_format == "iceberg" else {}
        agrees(taken, table_format)


@pytest.mark.mysql
def test_version_of_a_delta_table_that_agrees_with_mysql_and_mariadb_is_adopted(mysql: Taken) -> None:
    """The same; later versions of the table are not read."""
    taken = mysql
    write_deltalake(taken.path, taken.dump())
    write_deltalake(taken.path, taken.dump().slice(0, 1), mode="overwrite")
    agrees(taken, "delta", "--as-of", "0")


# ── what differs ────────────────────────────────────────────────────────────────────────────────────────────────


class Writing:
    """Writes that continue while a block runs."""

    def __init__(self, shop: ComparedShop, key: int) -> None:
        """`key`: the first key of inserted rows."""
        self._shop = shop
        self._key = key
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        number = 0
        while not self._ends.wait(0.02):
            number += 1
            key = 300 + number % 50
            self._shop.execute(
                f"UPDATE items SET name = 'busy {number}' WHERE id = {key}",
                f"DELETE FROM items WHERE id = {key + 1}",
                f"INSERT INTO items VALUES ({self._key + number}, 'busy', 'new')",
            )

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def stale(rows: pa.Table) -> pa.Table:
    """Rows 220 to 224 are missing, 1000 to 1002 are extra, 230 is off; 200 has an older text, and 250 is missing, too.
    What is read before the base is attached are other rows."""
    gone = pa.array([220, 221, 222, 223, 224, 230, 200, 250], pa.int32())
    kept = rows.filter(pc.invert(pc.is_in(rows.column("id"), gone)))
    more = {"id": [230, 200, 1000, 1001, 1002], "name": ["off"] + ["name"] * 4, "note": ["230 ", "old", "a", "b", "c"]}
    return pa.concat_tables([kept, pa.table(more).cast(rows.schema)])


DIFFERENT = 5 + 3 + 1 + 2
"""And the changes after the dump and before the capture: one row changed, one deleted."""


def mended(taken: Taken) -> None:
    shop = taken.shop
    # MySQL sends whole rows.
    different = DIFFERENT + (2 if shop.schema == "public" else 0)
    taken.as_parquet(stale(taken.dump()))
    shop.execute("UPDATE items SET name = 'unseen' WHERE id = 260", "DELETE FROM items WHERE id = 261")
    taken.start()
    shop.execute("UPDATE items SET name = 'seen' WHERE id = 262", "DELETE FROM items WHERE id = 263")
    with Writing(shop, 5000):
        taken.attach()
        # Their long texts do not come with it.
        shop.execute("UPDATE items SET name = 'since' WHERE id IN (200, 250, 150)")
        taken.merge_in_doubt()
    read = taken.read_into_the_log()
    found = shop.verify(code=1)["items/tables"]
    assert (found["verdict"], found["different"]) == ("different", different)
    said = shop.said("repair", taken.name)
    assert f"{taken.name}: {different} rows were read again" in said
    assert f"{taken.name} is verified" in said
    with Writing(shop, 90_000):
        shop.merge()
    taken.check_equal()
    assert shop.verify(code=0)["items/tables"]["verdict"] == "equal"
    assert taken.read_into_the_log() - read == different - 4, "the four that are gone are deletes"


@pytest.mark.spread(1)
def test_base_that_differs_from_postgres_is_repaired_by_the_rows_that_differ(postgres: Taken) -> None:
    """Writes continue between the dump and the capture, after it, and all the while. An unchanged long text is not sent
    with an update (P13): where the base has an older one, or lacks the row, it is read.
    """
    mended(postgres)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_base_that_differs_from_mysql_and_mariadb_is_repaired_by_the_rows_that_differ(mysql: Taken) -> None:
    """The same."""
    mended(mysql)


def test_base_that_is_swept_as_rows_that_no_backfill_found_is_seen(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the log is taken to have every row since the base came, as after a backfill. Then a merge removes the
    base, and all of it is read again."""
    taken.as_parquet(taken.dump())
    taken.start()
    taken.attach()
    monkeypatch.setattr(TableBackfill, "floor", property(lambda known: known.since))
    monkeypatch.setattr(TableBackfill, "finished_generation", property(lambda known: known.generation))
    taken.shop.merge()
    taken.shop.execute("UPDATE items SET name = 'since' WHERE id = 3")
    taken.merge_in_doubt()
    read = taken.read_into_the_log()
    assert "rows were read again" in taken.shop.said("repair", taken.name)
    assert taken.read_into_the_log() > read + ROWS / 2


def test_base_joins_the_log_after_rows_of_an_older_shape(taken: Taken) -> None:
    """The base has the columns of today: what was captured before the last change of shape is in it, or is read."""
    shop = taken.shop
    taken.start()
    shop.execute("UPDATE items SET name = 'older' WHERE id IN (300, 301)")
    shop.execute("ALTER TABLE items ADD more int DEFAULT 7", "UPDATE items SET name = 'newer', more = 8 WHERE id = 302")
    more = pa.array([8 if n == 302 else 7 for n in range(ROWS)], pa.int32())
    taken.as_parquet(taken.dump().sort_by("id").append_column("more", more))
    taken.wait_until_captured("newer")
    taken.attach()
    shop.execute("UPDATE items SET more = 9 WHERE id = 303")
    taken.merge_in_doubt()
    assert f"{taken.name} is verified" in shop.said("repair", taken.name)
    taken.check_equal()
    shop.verify(code=0)
    merged = shop.merge_until("items", lambda table: 9 in table.column("more").to_pylist())
    assert sorted(set(merged.column("more").to_pylist())) == [7, 8, 9]


# ── death in between ────────────────────────────────────────────────────────────────────────────────────────────


def merge_others(shop: ComparedShop, rows: int) -> None:
    """Merge until the other table has this many rows."""

    def are_merged() -> bool:
        with contextlib.suppress(HistoryLost, ConfigurationError):  # nothing of it is sealed, or was published
            shop.merge()
            return len(local.read_cut(shop.folder / "warehouse")["public.others"]) == rows
        return False

    wait_until(are_merged, f"{rows} rows of the other table")


def dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_attach_that_dies_is_finished_by_the_next_one(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the order and the table, and between the table and its rows: no merge makes a table of the log alone,
    which does not have all of its rows, and nothing is called whole."""
    shop = taken.shop
    taken.as_parquet(taken.dump())
    shop.execute("CREATE TABLE others (id int PRIMARY KEY)", "INSERT INTO others VALUES (1)")
    taken.start()
    shop.wait_until_done("others")
    where: list[tuple[type, str]] = [(Attaching, "_write"), (Attaching, "_make"), (DeltaTable, "load")]
    for number, dead in enumerate(where, 2):
        with monkeypatch.context() as planted:
            planted.setattr(*dead, dies)
            shop.said("attach", taken.name, "--from", str(taken.path), code=130)
        taken.wait_until_sealed()
        shop.execute(f"INSERT INTO others VALUES ({number})", "UPDATE items SET name = 'x' WHERE id = 3")
        merge_others(shop, number)
        assert not taken.is_shown(incomplete=True)
    why = shop.verify(code=1)["items/tables"]
    assert why["verdict"] == "not compared"
    assert f"run `cdcflow attach {taken.name} --from PATH` again" in why["reason"]
    assert f"{ROWS} rows" in taken.attach()
    assert "has its base already" in taken.attach()
    taken.merge_in_doubt()
    assert f"{taken.name} is verified" in shop.said("repair", taken.name)
    taken.check_equal()


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_attached_is_refused_with_what_to_do(taken: Taken) -> None:
    """Before anything is written: a later backfill finds everything unchanged."""
    shop = taken.shop
    rows = taken.dump()
    taken.as_parquet(rows)

    def refused(*arguments: str, table: str = "items", path: Path = taken.path) -> str:
        return shop.said_error("attach", f"{shop.schema}.{table}", "--from", str(path), *arguments)

    assert "start `cdcflow run`, then attach again" in refused()
    shop.execute("CREATE TABLE notes (note text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    taken.start(rate=60)
    shop.wait_until(lambda status: status["tables"][taken.name]["rows"] > 0, "rows")
    shop.said("table", "pause", taken.name)
    with pytest.raises(ConfigurationError, match="it has no key"):
        ask(shop.folder / "log", {"op": "attach", "tables": ["public.notes"], "base": "b"})
    assert "does not capture" in refused(table="nothing")
    assert "leave --as-of out" in refused("--as-of", "3")
    assert "correct the path" in refused(path=shop.folder / "nothing")

    def wrong(changed: pa.Table) -> str:
        path = shop.folder / "wrong.parquet"
        pq.write_table(changed, path)
        return refused(path=path)

    assert "note is missing" in wrong(rows.drop_columns(["note"]))
    assert "id is int64, and int in the table" in wrong(rows.set_column(0, "id", rows.column("id").cast(pa.int64())))
    twice = wrong(pa.concat_tables([rows, rows.slice(7, 3)]))
    assert "3 keys exist more than once (id)" in twice
    nameless = pa.table({"id": [None], "name": ["secret"], "note": ["secret"]}).cast(rows.schema)
    said = wrong(pa.concat_tables([rows, nameless]))
    assert "1 rows have NULL in their key (id)" in said
    assert "secret" not in said
    assert taken.entry()["gap" if "gap" in taken.entry() else "reason"] is None, "nothing was ordered"

    shop.settings["merge"]["tables"] = {"mode": "history"}
    shop.write()
    assert "only a table of mode current can have a base" in refused()
    del shop.settings["merge"]["tables"]
    shop.write()

    shop.merge_until_there("items")
    assert "otherwise move the folder away and attach again" in refused()
    shop.move_away("items")
    shop.said("table", "resume", taken.name)
    shop.wait_until_done("items")
    assert "run `cdcflow merge`" in refused()
    taken.check_equal()
    shop.verify(code=0)


def test_table_that_is_partly_read_and_merged_is_attached_once_its_folder_is_moved_away(taken: Taken) -> None:
    """The printed remedy, followed to the letter; also of a table whose backfill was cancelled."""
    shop = taken.shop
    taken.as_parquet(taken.dump())
    taken.start()
    shop.wait_until(lambda status: status["tables"][taken.name]["rows"] > 0, "rows")
    shop.said("table", "cancel", taken.name)
    shop.merge_until_there("items")
    shop.said_error("attach", taken.name, "--from", str(taken.path))
    shop.move_away("items")
    taken.attach()
    taken.merge_in_doubt()
    assert f"{taken.name} is verified" in shop.said("repair", taken.name)
    taken.check_equal()


def test_backfill_replaces_a_base(taken: Taken) -> None:
    """Rows that the base has and the source lacks are swept, as for any table that is read again."""
    shop = taken.shop
    taken.as_parquet(stale(taken.dump()))
    taken.start(rate=100)
    shop.said("table", "pause", taken.name)
    taken.attach()
    shop.execute("UPDATE items SET name = 'since' WHERE id = 3")  # what was read may be sealed by now
    taken.merge_in_doubt()
    shop.said("backfill", taken.name)
    assert "gap" not in taken.entry()
    taken.check_equal()
