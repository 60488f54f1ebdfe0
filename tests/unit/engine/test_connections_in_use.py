"""Pools and sessions from their first connection to their last: which are kept, and that none remains open."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.engine import connections
from cdcflow.sources.engine.connections import Pool, Session


class DriverError(Exception):
    pass


@dataclass(eq=False)
class Connection:
    number: int
    purpose: str
    dropped: bool = False
    dead: bool = False
    idle: bool = True
    woken: int = 0


class Connector(connections.Connector[Connection]):
    error = DriverError

    def __init__(self) -> None:
        super().__init__("server:1")
        self.made: list[Connection] = []

    def connect(self, purpose: str) -> Connection:
        self.made.append(Connection(len(self.made), purpose))
        return self._register(self.made[-1])

    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        return SourceUnavailable(f"{attempted}: {error}")

    def is_broken(self, connection: Connection) -> bool:
        return connection.dead or connection.dropped

    def is_idle(self, connection: Connection) -> bool:
        return connection.idle and not self.is_broken(connection)

    def is_idle_after_error(self, connection: Connection) -> bool:
        return self.is_idle(connection)

    def _break_off(self, connection: Connection) -> None:
        connection.woken += 1

    def _drop(self, connection: Connection) -> None:
        connection.dropped = True


@pytest.fixture
def connector() -> Connector:
    return Connector()


def number(connection: Connection) -> int:
    return connection.number


def fails(connection: Connection) -> None:
    raise DriverError("no")


def test_connections_of_a_pool_are_opened_when_needed_and_used_again(connector: Connector) -> None:
    """Two at the same time need two; afterwards both are free for the next."""
    pool = Pool(connector, "chunks")

    def inside(outer: Connection) -> tuple[int, int]:
        return outer.number, pool.run("inner", number)

    assert pool.run("outer", inside) == (0, 1)
    assert sorted(pool.run("outer", inside)) == [0, 1]
    assert [c.purpose for c in connector.made] == ["chunks", "chunks"]


def test_error_of_the_work_is_raised_and_its_connection_is_checked(connector: Connector) -> None:
    """An error of cdcflow is raised unchanged; a connection that was left busy is not used again."""
    pool = Pool(connector, "chunks")

    def raises(connection: Connection) -> None:
        connection.idle = False
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        pool.run("asking", raises)
    assert connector.made[0].dropped
    with pytest.raises(SourceUnavailable, match="asking: no"):
        pool.run("asking", fails)
    assert pool.run("asking", number) == 1, "nothing was wrong with it"
    connector.made[1].idle = True
    with pytest.raises(KeyError):
        pool.run("asking", lambda c: (_ for _ in ()).throw(KeyError("x")))
    assert pool.run("asking", number) == 1


def test_refusal_on_an_idle_connection_is_not_tried_again(connector: Connector) -> None:
    """Only one that died is replaced: a refusal would be the same on another."""
    pool = Pool(connector, "chunks")
    pool.run("asking", number)
    asked: list[int] = []

    def refused(connection: Connection) -> None:
        asked.append(connection.number)
        raise DriverError("no")

    with pytest.raises(SourceUnavailable):
        pool.run("asking", refused)
    assert asked == [0]


def test_all_that_died_while_idle_are_replaced_until_a_new_one_answers(connector: Connector) -> None:
    """A restarted server has ended every one of them."""
    pool = Pool(connector, "chunks")
    pool.run("outer", lambda c: pool.run("inner", number))
    for connection in connector.made:
        connection.dead = True

    def ask(connection: Connection) -> int:
        if connection.dead:
            raise DriverError("gone")
        return connection.number

    assert pool.run("asking", ask) == 2
    assert [c.dropped for c in connector.made] == [True, True, False]


def test_a_closed_pool_closes_what_is_idle_and_breaks_off_the_rest(connector: Connector) -> None:
    """And a connection that is returned later is closed, not kept."""
    pool = Pool(connector, "chunks")

    def closes(outer: Connection) -> None:
        pool.run("inner", number)
        pool.close()
        assert (outer.woken, outer.dropped) == (1, False), "a thread waits on it: it must not be freed under that"
        assert connector.made[1].dropped

    pool.run("outer", closes)
    assert connector.made[0].dropped
    with pytest.raises(SourceUnavailable, match="connecting to server:1: this source is closed"):
        pool.run("asking", number)
    assert connector.made[2].dropped


def test_connection_for_a_block_is_exclusive_and_is_closed_after_it(connector: Connector) -> None:
    """Whatever happens inside."""
    pool = Pool(connector, "snapshot")
    pool.run("asking", number)
    with pool.another() as own:
        assert (own.number, own.purpose, own.dropped) == (1, "snapshot", False)
    assert own.dropped
    with pytest.raises(KeyError), pool.another() as own:
        raise KeyError
    assert own.dropped
    assert pool.run("asking", number) == 0


def test_broken_or_returned_connection_is_not_interrupted_again(connector: Connector) -> None:
    """The set of open ones does not grow with the years, and waking a connection that is gone may wait."""
    dead, given_back, living = (connector.connect("test") for _ in range(3))
    dead.dead = True
    connector.discard(given_back)
    last = connector.connect("test")
    connector.close()
    assert [c.woken for c in (dead, given_back, living, last)] == [0, 0, 1, 1]
    connector.close()
    assert [c.woken for c in (living, last)] == [1, 1], "once"


def test_returned_connection_is_not_woken_when_the_source_closes(connector: Connector) -> None:
    """Its socket's number may already belong to another connection."""
    given_back, kept = connector.connect("test"), connector.connect("test")
    connector.discard(given_back)
    connector.close()
    assert [c.woken for c in (given_back, kept)] == [0, 1]


def test_a_closed_source_opens_nothing(connector: Connector) -> None:
    """A dialect may check whether the source is open before it opens a connection."""
    connector.check_open()
    assert not connector.closed
    connector.close()
    assert connector.closed
    with pytest.raises(SourceUnavailable, match="connecting to server:1: this source is closed"):
        connector.check_open()


def test_library_errors_become_cdcflow_errors_with_what_was_attempted(connector: Connector) -> None:
    """Other errors stay unchanged."""
    with pytest.raises(SourceUnavailable, match="reading x: no"), connector.mapping_errors("reading x"):
        raise DriverError("no")
    with pytest.raises(KeyError), connector.mapping_errors("reading x"):
        raise KeyError
    with connector.mapping_errors("reading x"):
        pass


def test_library_without_a_connection_state_leaves_no_connection_open_after_an_error() -> None:
    """Unless a dialect specifies otherwise."""

    class Plain(Connector):
        def is_idle_after_error(self, connection: Connection) -> bool:
            return connections.Connector.is_idle_after_error(self, connection)

    connector = Plain()
    pool = Pool(connector, "chunks")
    with pytest.raises(SourceUnavailable):
        pool.run("asking", fails)
    assert connector.made[0].dropped
    with pytest.raises(KeyError, match="ours"):
        pool.run("asking", lambda _: (_ for _ in ()).throw(KeyError("ours")))
    assert connector.made[1].dropped, "an answer may be half read, whatever raised the error"


def test_a_session_keeps_its_connection_until_it_is_closed(connector: Connector) -> None:
    """And opens the next one at the next use; closing one that was never opened does nothing."""
    session = Session(connector, lambda: connector.connect("catalog"))
    session.close()
    assert connector.made == []
    assert [session.ask("looking", number) for _ in range(2)] == [0, 0]
    session.close()
    session.close()
    assert connector.made[0].dropped
    assert session.ask("looking", number) == 1


def test_a_session_s_connection_that_died_is_closed_and_one_that_refuses_is_kept(connector: Connector) -> None:
    """A new one may be refused, too; then the next query tries again."""
    session = Session(connector, lambda: connector.connect("catalog"))
    session.ask("looking", number)
    with pytest.raises(SourceUnavailable, match="looking: no"):
        session.ask("looking", fails)
    assert not connector.made[0].dropped
    connector.made[0].dead = True
    with pytest.raises(SourceUnavailable, match="looking: no"):
        session.ask("looking", fails)
    assert connector.made[0].dropped
    assert session.ask("looking", number) == 1
    connector.made[1].dead = True
    connector.close()
    with pytest.raises(SourceUnavailable, match="this source is closed"):
        session.ask("looking", fails)
    assert connector.made[1].dropped


def test_queries_of_a_session_run_one_after_another(connector: Connector) -> None:
    """One connection answers one query at a time."""
    session = Session(connector, lambda: connector.connect("catalog"))
    inside, may_go = threading.Event(), threading.Event()

    def waits(_: Connection) -> None:
        inside.set()
        assert may_go.wait(30)

    first = threading.Thread(target=session.ask, args=("looking", waits))
    first.start()
    assert inside.wait(30)
    answered = threading.Event()
    second = threading.Thread(target=session.ask, args=("looking", lambda _: answered.set()))
    second.start()
    assert not answered.wait(0.05)
    may_go.set()
    first.join(30)
    second.join(30)
    assert answered.is_set()
