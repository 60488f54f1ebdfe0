"""Where in the log a table's life ends or begins, and what the stream reports about it."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import Log, simple
from tests.support.mysql.binlog_decoder import FLAVORS, U, ids_of, one, reader

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.lives import Lives, ended_tables, new_tables
from cdcflow.sources.mysql.position import Coordinate, coordinate

A, B, C = (TableId("shop", name) for name in "abc")
at = Coordinate


def never(_: TableId) -> bool:
    return False


def test_captured_table_that_is_gone_stays_until_its_end_is_in_the_log() -> None:
    """M39: the first start finds it missing, later ones wait for the same place; then it is off the list."""
    first = ended_tables(Lives(), {A, B}, {B}, position=at(10), end=at(50), is_kept=never)
    assert first == {A: at(50)}
    again = ended_tables(Lives(first), {A, B}, {B}, position=at(49), end=at(80), is_kept=never)
    assert again == first
    assert ended_tables(Lives(first), {A, B}, {B}, position=at(50), end=at(90), is_kept=never) == {}


def test_table_named_explicitly_in_the_settings_stays_on_the_list() -> None:
    """It was captured, so its name is not a mistake; and where all tables are gone, the capture waits for others."""
    before = Lives({A: at(50), C: at(50)})
    assert ended_tables(before, {A, B, C}, {B}, position=at(60), end=at(90), is_kept=lambda table: table == A) == {
        A: at(50)
    }
    assert ended_tables(before, {A, C}, set(), position=at(60), end=at(90), is_kept=never) == {A: at(50), C: at(50)}
    assert ended_tables(before, {A, B}, {A, B}, position=at(60), end=at(90), is_kept=lambda table: True) == {}


def test_places_of_another_server_mean_nothing() -> None:
    """After a switch of servers the ends are looked for again, and nothing is skipped."""
    before = Lives({A: at(50)}, {B: at(60)})
    assert ended_tables(before, {A, B}, {B}, position=None, end=at(7), is_kept=never) == {A: at(7)}
    assert new_tables(before, {A, B}, {B, C}, position=None, visible=at(9)) == {}


def test_new_table_counts_from_the_place_that_every_snapshot_sees() -> None:
    """Also where it has the name of a table that has ended, and from the same position after a restart."""
    assert new_tables(Lives(), {A}, {A, B}, position=at(10), visible=at(50)) == {B: at(50)}
    assert new_tables(Lives(begins={B: at(50)}), {A, B}, {A, B}, position=at(20), visible=at(90)) == {B: at(50)}
    assert new_tables(Lives(begins={B: at(50)}), {A, B}, {A, B}, position=at(50), visible=at(90)) == {}
    assert new_tables(Lives({C: at(30)}), {A, C}, {A, C}, position=at(40), visible=at(50)) == {C: at(50)}
    assert new_tables(Lives({C: at(30)}), {A, C}, {A, C}, position=at(20), visible=at(50)) == {}
    assert new_tables(Lives(), {A}, {A, B}, position=at(10), visible=None) == {}


def test_incarnations_are_kept_in_the_checkpoint() -> None:
    lives = Lives({A: at(50)}, {TableId('a"b', "ü"): at(1 << 45)})
    assert Lives.from_json(lives.to_json()) == lives


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("pieces", [False, True])
def test_unreadable_names_of_a_new_table_stop_the_stream_after_its_position(flavor: Flavor, pieces: bool) -> None:
    """A backfill has the rows before that position: there, a table map without names is skipped and the others are
    used."""
    log = Log(flavor)
    one(log, 1, table=NAMELESS)
    one(log, 2, table=U)
    one(log, 3)
    log.standalone("UPDATE shop.t SET name = 'x'")
    one(log, 4, table=NAMELESS)
    place = coordinate(*log.place)
    one(log, 5)
    log.rotate()
    one(log, 6)
    found = reader(log)
    found.tables.later[T_ID] = place
    data = log.dump()
    found.feed(data, [7] * (len(data) // 7) if pieces else [])
    assert ids_of(found) == [2, 3, 5, 6]
    before, size = log.place, len(data)
    one(log, 7, table=NAMELESS)
    with pytest.raises(ConfigurationError, match="does not name its columns"):
        found.feed(log.dump(*before)[-(len(log.dump()) - size) :])


@pytest.mark.parametrize("flavor", FLAVORS)
def test_place_in_an_earlier_file_is_passed(flavor: Flavor) -> None:
    log = Log(flavor)
    one(log, 1, table=NAMELESS)
    place = coordinate(*log.place)
    log.rotate()
    one(log, 2, table=NAMELESS)
    found = reader(log)
    found.tables.later[T_ID] = place
    with pytest.raises(ConfigurationError, match="does not name its columns"):
        found.feed(log.dump())


@pytest.mark.parametrize("flavor", FLAVORS)
def test_xa_transaction_from_before_counts(flavor: Flavor) -> None:
    """M45: it is committed after the position, so no snapshot taken there has seen its rows."""
    log = Log(flavor)
    one(log, 1, table=NAMELESS)
    log.gtid()
    log.query("XA START X'61',X'',1")
    log.insert(NAMELESS, (2, "a"))
    log.query("XA END X'61',X'',1")
    log.xa_prepare(b"a")
    place = coordinate(*log.place)
    log.standalone("XA COMMIT X'61',X'',1")
    found = reader(log)
    found.tables.later[T_ID] = place
    with pytest.raises(ConfigurationError, match="does not name its columns"):
        found.feed(log.dump())


T_ID = TableId("shop", "t")
NAMELESS = simple("t", full=False)
