"""A merge that was halted between its check of a table and its statement, while another merge ran: where several
drivers may merge, it does not execute what it had computed before.

The first driver's session stops in the middle of a merge, the second one's merges, the first continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table
from tests.support.objects.logs import put_away

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.spark import engine, job, read_cut
from cdcflow.spark.formats import table_format
from cdcflow.spark.runtime.stores import check_commits
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.formats.iceberg import TRANSACTIONS
from cdcflow.tables.paths import Warehouse, table_path
from cdcflow.tables.port import CurrentTable

KEYED = make_table("keyed", id="int64", a="int32")
BAG = make_table("bag", key=(), id="int64", a="int32")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> Warehouse:
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "jdbc.schema-version": "V1", "clients": "1"}
    place = f"s3a://lake/{tmp_path.name}/{request.param}"
    return Warehouse(place, server.objects("lake").address("lake"), catalog if request.param == "iceberg" else None)


class Drivers:
    """Two drivers that merge one log into one warehouse, and a point where the first one halts."""

    def __init__(self, spark: Any, lake: Warehouse, log: HandLog, server: ObjectServer, monkeypatch: Any) -> None:
        self._spark, self._lake, self._log, self._server = spark, lake, log, server
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(engine, "lease", lambda *_: nullcontext())

    def layout(self, name: str) -> Layout:
        """The currently sealed segments, without any later ones."""
        test = self._log.root.parent
        objects = self._server.objects("logs", f"{test.name}-{name}")
        put_away(self._log.root, Bucket(objects))
        room = test / name
        return Layout(room, BucketStore(Bucket(objects), room, 1 << 20))

    def merge(self, layout: Layout) -> Any:
        return job.merge(self._spark, layout, self._lake)

    def merge_halted(self, layout: Layout, at: str, meanwhile: Callable[[], object]) -> None:
        """It gets an error that another driver has merged, and continues the next time."""
        self.halt(at, meanwhile)
        with pytest.raises(SinkUnavailable, match="another merge"):
            self.merge(layout)

    def halt(self, at: str, meanwhile: Callable[[], object]) -> None:
        """The next call of this table method waits until the other driver's work is done."""
        of = type(table_format("iceberg" if self._lake.catalog else "delta").table(self._spark, self._lake, ("x", "y")))
        done = getattr(of, at)

        def halted(table: CurrentTable, *given: Any, **more: Any) -> Any:
            self._monkeypatch.setattr(of, at, done)
            meanwhile()
            return done(table, *given, **more)

        self._monkeypatch.setattr(of, at, halted)

    def rows(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        shown = read_cut(self._spark, self._lake, incomplete=True)[str(table.id)]
        return sorted(tuple(row) for row in shown.select(*(columns or ("id", "a"))).collect())


@pytest.fixture
def drivers(spark: Any, lake: Warehouse, hand_log: HandLog, server: ObjectServer, monkeypatch: Any) -> Drivers:
    for table in (KEYED, BAG):
        hand_log.state(table)
    return Drivers(spark, lake, hand_log, server, monkeypatch)


def rows_of(table: Table, *rows: tuple[str, int, int]) -> list[Step]:
    return [(table, op, {"id": id_, "a": a}) for op, id_, a in rows]


@pytest.mark.parametrize("at", ["make", "fold"])
@pytest.mark.long
def test_first_rows_come_once(drivers: Drivers, hand_log: HandLog, at: str) -> None:
    hand_log.segment(rows_of(KEYED, ("c", 1, 1)))
    one = drivers.layout("one")
    hand_log.segment(rows_of(KEYED, ("c", 2, 2)))
    drivers.merge_halted(drivers.layout("both"), at, lambda: drivers.merge(one))
    drivers.merge(drivers.layout("both"))
    assert drivers.rows(KEYED) == [(1, 1), (2, 2)]


@pytest.mark.long
def test_range_that_another_driver_merged_in_part_is_not_merged_again(drivers: Drivers, hand_log: HandLog) -> None:
    """The other driver has advanced the tables, and the halted one has computed more than what is left."""
    hand_log.segment(rows_of(BAG, ("c", 1, 1), ("c", 5, 5)))
    drivers.merge(drivers.layout("first"))
    hand_log.segment(rows_of(BAG, ("c", 2, 2), ("d", 5, 5)))
    second = drivers.layout("second")
    hand_log.segment(rows_of(BAG, ("c", 3, 3)))
    drivers.merge_halted(drivers.layout("third"), "fold", lambda: drivers.merge(second))
    drivers.merge(drivers.layout("third"))
    assert drivers.rows(BAG) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.long
def test_schema_change_that_others_have_made_long_ago_undoes_nothing(drivers: Drivers, hand_log: HandLog) -> None:
    """The halted one was about to take the values out of a column that was dropped; there is a new one of its name."""
    hand_log.segment([(make_table("shop", key=(), id="int64", b="int32"), "c", {"id": 1, "b": 1})])
    drivers.merge(drivers.layout("first"))
    hand_log.segment([(make_table("shop", key=(), id="int64"), "c", {"id": 2})])
    second = drivers.layout("second")
    again = make_table("shop", key=(), id="int64", b="int32", numbers={"b": 3})

    def go_on() -> None:
        drivers.merge(second)
        hand_log.segment([(again, "c", {"id": 3, "b": 7})])
        drivers.merge(drivers.layout("third"))
        drivers.layout("second")  # it sees by now what the other has seen

    drivers.merge_halted(second, "follow", go_on)
    assert not drivers.merge(drivers.layout("third")).published
    assert drivers.rows(again, "id", "b") == [(1, None), (2, None), (3, 7)]


HALTED_IN_COMMIT = {"delta": "_look_behind_own_commit", "iceberg": "_check_same"}
FEW = make_table("few", id="int64", a="int32")


def come_and_gone(drivers: Drivers, hand_log: HandLog) -> tuple[Layout, Layout]:
    """A log of three cuts whose first is merged: a row is inserted in the second and deleted in the third.
    Returns the log at the second cut, and at the third.
    """
    hand_log.segment(rows_of(FEW, ("c", 1, 1)))
    drivers.merge(drivers.layout("first"))
    hand_log.segment(rows_of(FEW, ("c", 9, 9)))
    second = drivers.layout("second")
    hand_log.segment(rows_of(FEW, ("d", 9, 9)))
    return second, drivers.layout("third")


@pytest.mark.spread(1)
def test_older_range_that_is_committed_last_is_merged_over(
    drivers: Drivers, hand_log: HandLog, lake: Warehouse
) -> None:
    """Iceberg takes it, for the newer one has touched no file; Delta refuses it."""
    second, third = come_and_gone(drivers, hand_log)

    def go_on() -> None:
        drivers.merge(third)
        drivers.layout("second")  # it sees by now what the other has seen

    drivers.merge_halted(second, HALTED_IN_COMMIT["iceberg" if lake.catalog else "delta"], go_on)
    assert drivers.rows(FEW) == [(1, 1)], "the published cut has changed"
    drivers.merge(third)
    hand_log.segment(rows_of(FEW, ("c", 2, 2)))
    drivers.merge(drivers.layout("fourth"))
    assert drivers.rows(FEW) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
@pytest.mark.long
def test_cut_shows_no_older_range_that_was_committed_in_between(
    drivers: Drivers, hand_log: HandLog, lake: Warehouse, spark: Any, monkeypatch: Any
) -> None:
    """It is committed after the later one, which then checks what to publish. Delta refuses it, as above."""
    _, third = come_and_gone(drivers, hand_log)
    there = table_format("iceberg").table(spark, lake, table_path(FEW.id))
    known = there.snapshot()
    assert known is not None
    (app,) = known.transactions
    kind = type(there)
    fold = kind.fold

    def folded(table: Any, *given: Any) -> None:
        fold(table, *given)
        monkeypatch.setattr(kind, "fold", fold)
        setting = f"spark.sql.iceberg.snapshot-property.{TRANSACTIONS}"
        spark.conf.set(setting, json.dumps({app: 2}))
        spark.sql(f"INSERT INTO {there.sql} VALUES (9, 9, 2, NULL)")
        spark.conf.unset(setting)

    monkeypatch.setattr(kind, "fold", folded)
    with pytest.raises(SinkUnavailable, match="another merge brought it to cut 2"):
        drivers.merge(third)
    drivers.merge(third)
    assert drivers.rows(FEW) == [(1, 1)]


def test_session_that_commits_as_delta_does_by_itself_is_refused(spark: Any) -> None:
    """At any URL: also where two drivers never commit the same version, one could commit outdated changes."""
    with pytest.raises(ConfigurationError, match="one of two drivers could undo") as refused:
        check_commits(spark, Warehouse("other://elsewhere/lake"))
    assert "spark.delta.logStore.other.impl=cdcflow.delta.CheckedLogStore" in str(refused.value)
    check_commits(spark, Warehouse("hdfs://elsewhere/lake"))  # our own sessions have it


def test_log_store_for_any_place_refuses_what_is_out_of_date(spark: Any, tmp_path: Path) -> None:
    jvm = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    store = jvm.cdcflow.delta.CheckedLogStore(conf)

    def commit(version: int, read: int | None) -> None:
        said = json.dumps({"commitInfo": {} if read is None else {"readVersion": read}}, separators=(",", ":"))
        lines = jvm.java.util.ArrayList()
        lines.add(said)
        path = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/{version:020d}.json")
        store.write(path, lines.iterator(), False, conf)
        assert list(store.read(path, conf)) == [said]

    commit(0, None)
    conf.set("cdcflow.delta.read-version", "-1")
    commit(1, None)
    conf.set("cdcflow.delta.read-version", "5")
    commit(7, 5)  # what came between was no conflict
    for read in (4, 6, None):
        with pytest.raises(Py4JJavaError, match="CDCFLOW_TABLE_CHANGED"):
            commit(8, read)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        commit(7, 5)
