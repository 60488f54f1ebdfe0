"""Connections that die, that are cancelled, and that are kept: the same rules for every dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cdcflow.config.ssh import Ssh
from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.engine import connections
from cdcflow.sources.engine.connections import Pool, Session
from cdcflow.sources.engine.ssh_tunnel import Tunnel


class DriverError(Exception):
    pass


@dataclass(eq=False)
class Connection:
    number: int
    broken: bool = False
    idle: bool = True
    woken: bool = False


@dataclass
class Server:
    made: list[Connection] = field(default_factory=list)


class Connector(connections.Connector[Connection]):
    error = DriverError

    def __init__(self, server: Server, *, knows_state: bool = True, tunnel: Tunnel | None = None) -> None:
        super().__init__("server:1", tunnel)
        self.server = server
        self.knows_state = knows_state

    def connect(self, purpose: str) -> Connection:
        self.check_open()
        made = Connection(len(self.server.made))
        self.server.made.append(made)
        return self._register(made)

    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        return SourceUnavailable(f"{attempted}: refused")

    def is_broken(self, connection: Connection) -> bool:
        return connection.broken

    def is_idle(self, connection: Connection) -> bool:
        return connection.idle and not connection.broken

    def is_idle_after_error(self, connection: Connection) -> bool:
        return self.knows_state and self.is_idle(connection)

    def _break_off(self, connection: Connection) -> None:
        connection.woken = True

    def _drop(self, connection: Connection) -> None:
        connection.broken = True


def fails(connection: Connection) -> None:
    raise DriverError


def test_loopback_is_that_of_the_ssh_server_at_the_end_of_a_tunnel() -> None:
    """doctor names the machine whose loopback a connection without TLS used."""
    ssh = Ssh(host="bastion", port=22, user="me", key_file=Path("key"), known_hosts=Path("known_hosts"))
    assert Connector(Server()).machine == "on this machine"
    assert Connector(Server(), tunnel=Tunnel(ssh, "localhost", 5432)).machine == f"on the SSH server {ssh}"


def dies(connection: Connection) -> None:
    connection.broken = True
    raise DriverError


def test_connection_that_died_while_idle_is_replaced_once() -> None:
    """A firewall or a restarted server ends idle connections; callers need not notice."""
    server = Server()
    pool = Pool(Connector(server), "test")
    assert pool.run("asking", lambda c: c.number) == 0
    server.made[0].broken = True

    def ask(connection: Connection) -> int:
        if connection.broken:
            raise DriverError
        return connection.number

    assert pool.run("asking", ask) == 1


def test_new_connection_that_dies_is_not_replaced() -> None:
    """Then the server has a problem, and the pause before the next try is the caller's."""
    server = Server()
    pool = Pool(Connector(server), "test")
    with pytest.raises(SourceUnavailable, match="asking: refused"):
        pool.run("asking", dies)
    assert len(server.made) == 1


@pytest.mark.parametrize("knows_state", [True, False])
def test_connection_is_used_again_after_an_error_only_where_its_state_is_known(knows_state: bool) -> None:
    """Half an answer may still be on its way to a connection whose library cannot tell."""
    server = Server()
    pool = Pool(Connector(server, knows_state=knows_state), "test")
    with pytest.raises(SourceUnavailable):
        pool.run("asking", fails)
    again = [pool.run("asking", lambda c: c.number) for _ in range(2)]
    assert again == ([0, 0] if knows_state else [1, 1]), "nothing failed on the second one"


def test_busy_connection_is_never_given_to_the_next_one() -> None:
    """An open transaction would show the next reader an old snapshot."""
    server = Server()
    pool = Pool(Connector(server), "test")

    def leave_open(connection: Connection) -> None:
        connection.idle = False

    pool.run("asking", leave_open)
    assert server.made[0].broken, "closed, not kept"
    assert pool.run("asking", lambda c: c.number) == 1


def test_closing_wakes_waiting_threads_and_admits_no_new_one() -> None:
    """A daemon that stops must not wait for a query, and no thread may open a connection after closing began."""
    server = Server()
    connector = Connector(server)
    waiting = connector.connect("test")
    connector.close()
    assert waiting.woken
    with pytest.raises(SourceUnavailable, match="this source is closed"):
        connector.connect("test")


def test_query_is_repeated_on_a_new_connection_only_when_the_old_one_died() -> None:
    """A refusal stays a refusal: a second query would only report it later."""
    server = Server()
    connector = Connector(server)
    session = Session(connector, lambda: connector.connect("catalog"))
    assert session.ask("looking", lambda c: c.number) == 0
    with pytest.raises(SourceUnavailable, match="looking: refused"):
        session.ask("looking", fails)
    assert len(server.made) == 1
    server.made[0].broken = True

    def ask(connection: Connection) -> int:
        if connection.broken:
            raise DriverError
        return connection.number

    assert session.ask("looking", ask) == 1
