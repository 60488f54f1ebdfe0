"""What each dialect stores in a checkpoint, and what the capture adds: as the versions before wrote and read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdcflow.capture.ports.source import Source, TablesToReread
from cdcflow.capture.reread import KEPT, LOST, StoredOrders, without_orders
from cdcflow.config import MySQL, Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint, Offset, Position
from cdcflow.model.table import TableId
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.sources.memory.stored_state import MemoryState
from cdcflow.sources.mysql.gtids import MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, Coordinate
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.sources.mysql.stored_state import MySQLState
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names

State = PostgresState | MySQLState | MemoryState
STORED = json.loads((Path(__file__).parent / "stored_states.json").read_text())
"""`source` of checkpoints as the version before these classes wrote it: of real servers, and `with more` entries that
are rare there (a publication that gives more, tables that are gone, new or waiting, another server)."""
CLASSES: Mapping[str, type[State]] = {
    "postgres": PostgresState,
    "mysql": MySQLState,
    "mariadb": MySQLState,
    "memory": MemoryState,
}
NAMES = [TableId("public", "items"), TableId("public", "o.d d")]


def stored(name: str) -> tuple[type[State], dict[str, str]]:
    return CLASSES[name.split()[0]], STORED[name]


@pytest.mark.parametrize("name", STORED)
def test_stored_state_is_read_and_written_again_letter_for_letter(name: str) -> None:
    """A log of the version before goes on, and that version can take it back."""
    kind, source = stored(name)
    state = kind.read(source)
    assert state is not None
    assert list(state.write().items()) == list(source.items())
    assert not state.others, "every entry has a field"


@pytest.mark.parametrize("name", STORED)
def test_state_of_another_version_stops_with_the_remedy(name: str) -> None:
    """Read by the rules of this one, it would name the wrong slot or no tables."""
    kind, source = stored(name)
    with pytest.raises(ConfigurationError, match="version 2, this one reads 1") as refused:
        kind.read({**source, "version": "2"})
    assert "newer cdcflow" in str(refused.value.remedy)
    assert kind.read({**source, "version": "1"}) == kind.read(source)


def source_of(name: str) -> Source:
    """A source of the dialect, which does not answer."""
    kind = name.split()[0]
    if kind == "memory":
        return MemorySource(MemoryDatabase())
    if kind == "postgres":
        return PostgresSource(Postgres(kind="postgres", url="postgresql://cdc@127.0.0.1:1/shop"), lambda: None)
    settings = {"kind": kind, "url": "mysql://cdc@127.0.0.1:1", "tables": ["shop.*"], "tls": {"mode": "off"}}
    return MySQLSource(MySQL.model_validate(settings), lambda: None)


@pytest.mark.parametrize("name", STORED)
def test_state_of_another_version_is_a_finding_before_the_start(name: str) -> None:
    """`cdcflow doctor` reports it with its remedy, and without a query to the server."""
    checkpoint = Checkpoint(position=Position("p"), source={**STORED[name], "version": "2"})
    (finding,) = source_of(name).continues(lambda: checkpoint, "0123456789abcdef")
    assert (finding.level, finding.subject) == ("error", "position")
    assert "version 2, this one reads 1" in finding.text
    assert finding.remedy == "install the newer cdcflow again"


@pytest.mark.parametrize("name", STORED)
def test_entries_that_this_version_does_not_know_stay(name: str) -> None:
    """A later cdcflow of the same version may have added one, and will read it again."""
    kind, source = stored(name)
    state = kind.read({**source, "later": "kept"})
    assert state is not None
    assert state.write() == {**source, "later": "kept"}


def test_state_of_one_dialect_is_not_taken_for_another_s() -> None:
    """Each names what it lacks; a log whose source was never read has none."""
    for name in ("postgres", "mysql"):
        other = MySQLState if name.startswith("postgres") else PostgresState
        with pytest.raises(ConfigurationError, match="is missing"):
            other.read(stored(name)[1])
    assert [kind.read({}) for kind in CLASSES.values()] == [None] * 4
    assert captured_names(None) == {}


def test_postgres_state_is_read_as_before() -> None:
    """By the rules of the functions that read the entries before: oids, names and positions."""
    for name in (n for n in STORED if n.startswith("postgres")):
        source = stored(name)[1]
        state = PostgresState.read(source)
        assert state is not None
        assert captured_names(state) == old_names_by_oid(source)
        lives = [[life.oid, *names(life.table), life.end.value] for life in state.lives]
        assert lives == json.loads(source["lives"])
        joining = {str(number): bound for number, bound in state.joining.items()}
        assert joining == json.loads(source.get("joining", "{}"))
        captured = (state.captured or {}).items()
        since = {json.dumps(names(table)): [oid, str(at)] for table, (oid, at) in captured}
        assert since == json.loads(source.get("captured", "{}"))
        assert str(state.began_at) == source["began_at"]


def names(table: TableId) -> list[str]:
    return [table.schema, table.name]


def old_names_by_oid(source: Mapping[str, str]) -> dict[int, TableId]:
    tables = json.loads(source.get("publication_state", '{"tables": {}}'))["tables"]
    captured = json.loads(source.get("captured", "{}"))
    return {entry[0]: TableId(*json.loads(name)) for name, entry in (*tables.items(), *captured.items())}


@pytest.mark.parametrize(
    ("orders", "written"),
    [
        (StoredOrders(), {}),
        (StoredOrders(LOST), {"history": "lost"}),
        (StoredOrders(KEPT), {"history": "lost, rows kept"}),
        (
            StoredOrders("", TablesToReread(frozenset(NAMES), frozenset(NAMES[:1]))),
            {"reread": '[["public","items"],["public","o.d d"]]', "retried": '[["public","items"]]'},
        ),
    ],
)
def test_orders_are_stored_next_to_the_state_as_before(orders: StoredOrders, written: dict[str, str]) -> None:
    """They stay until a cut has the commands; the source never sees them."""
    assert orders.write() == written
    assert StoredOrders.read({"slot": "s", **written}) == orders
    assert without_orders({"slot": "s", **written}) == {"slot": "s"}


MIXED: list[Any] = [
    Lsn(5),
    Coordinate(5),
    BinlogPosition(BinlogFile("b.1"), 5),
    MysqlGtids.parse(""),
    MariadbGtids.parse(""),
    Offset(5),
    "00000000/00000005",
]


@pytest.mark.parametrize("left", MIXED[:5], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("right", MIXED, ids=lambda value: type(value).__name__)
def test_positions_of_different_kinds_do_not_compare(left: Any, right: Any) -> None:
    """False would mean that a position is not reached yet, and true that it is: both are lies."""
    if type(left) is type(right):
        assert left == right or left is not right
        assert len({left, right}) <= 2
        return
    for compare in (lambda: left == right, lambda: right == left, lambda: left < right, lambda: left in [right]):
        with pytest.raises(TypeError):
            compare()
    assert left != None  # noqa: E711
    if hasattr(left, "covers"):
        with pytest.raises(TypeError):
            left.covers(right)


def test_values_of_one_kind_compare_as_before() -> None:
    """The decorator changes nothing else: hashes, order, equality with a copy."""
    assert Lsn(1) < Lsn(2) <= Lsn(2) == Lsn(2)
    assert {Lsn(1), Lsn(1)} == {Lsn(1)}
    assert Lsn(7) - Lsn(5) == 2
    assert Lsn(5) + 2 == Lsn(7)
