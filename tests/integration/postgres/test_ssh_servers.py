"""A source that is reached through an SSH server: what is checked, and which remedy each refusal has."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.servers.postgres import Database, PostgresServer
from tests.servers.sshd import SshServer, generate_key
from tests.servers.tls_front import TlsFront
from tests.support.certificates import ELSEWHERE, HERE, Authority
from tests.support.daemon.through_ssh import links
from tests.support.polling import wait_until

from cdcflow.config import Postgres, Ssh
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing, SourceUnavailable
from cdcflow.sources.engine import ssh_tunnel
from cdcflow.sources.postgres.connection import Connector

pytestmark = pytest.mark.postgres
Connect = Callable[..., Connector]


@pytest.fixture(scope="module")
def shop() -> Iterator[Database]:
    with PostgresServer() as server:
        yield server.create_database("shop")


@pytest.fixture
def connector(shop: Database, ssh_server: SshServer) -> Callable[..., Connector]:
    def made(options: str = "", at: int | None = None, **ssh: Any) -> Connector:
        url = f"postgresql://postgres@db.example.com:{at or shop.server.port}/shop?hostaddr=127.0.0.1{options}"
        given = {"kind": "postgres", "url": url, "ssh": {**ssh_server.settings, **ssh}}
        return Connector.of(Postgres.model_validate(given), lambda: None)

    return made


def refusal(connector: Connector) -> CdcflowError:
    with pytest.raises(CdcflowError) as found:
        connector.connect("test")
    assert found.value.runbook == "ssh-tunnel"
    return found.value


def follow(remedy: str | None) -> None:
    """Run the commands of a remedy, each after the word `run`."""
    assert remedy is not None
    commands = [line.partition("run ")[2] for line in remedy.splitlines() if "run " in line]
    assert commands
    for command in commands:
        subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)


def test_certificate_is_compared_with_the_name_of_the_database(
    shop: Database, connector: Connect, tmp_path: Path
) -> None:
    """S02: the address that is connected to is loopback, and a certificate for that would prove nothing."""
    authority = Authority(tmp_path, "authority")
    verified = f"&sslmode=verify-full&sslrootcert={authority.path}"
    with front(shop, authority, ELSEWHERE) as right, front(shop, authority, HERE) as wrong:
        connection = connector(verified, right.port).connect("test")
        assert connection.pgconn.ssl_in_use
        connection.close()
        with pytest.raises(ConfigurationError, match="no secure connection"):
            connector(verified, wrong.port).connect("test")
        assert wrong.accepted == 1


def front(shop: Database, authority: Authority, host: x509.GeneralName, *, fails: bool = False) -> TlsFront:
    made = authority.certificate(type(host).__name__, host)
    return TlsFront(shop.server.port, made["ssl_cert"], made["ssl_key"], fails=fails)


def test_library_may_connect_a_second_time(shop: Database, connector: Connect, tmp_path: Path) -> None:
    """libpq tries without TLS what failed with it, at the same address."""
    with front(shop, Authority(tmp_path, "authority"), ELSEWHERE, fails=True) as failing:
        connector("&sslmode=prefer", failing.port).connect("test").close()
        assert failing.accepted == 2


def test_many_connections_at_the_same_time(connector: Connect) -> None:
    """An SSH server refuses some of more than ten logins at the same time."""
    made = connector()
    with ThreadPoolExecutor(20) as threads:
        for connection in threads.map(lambda _: made.connect("test"), range(20)):
            made.discard(connection)


def test_unknown_host_key_is_refused_and_the_remedy_adds_it(connector: Connect, ssh_server: SshServer) -> None:
    """Trust at the first connection is trust in any server that answers it."""
    ssh_server.known_hosts.write_text("")
    found = refusal(connector())
    assert isinstance(found, ConfigurationError)
    assert "has no host key of this server" in str(found)
    assert ssh_server.logins == 0
    follow(found.remedy)
    connector().connect("test").close()
    ssh_server.known_hosts.unlink()
    found = refusal(connector())
    assert "cannot be read: No such file" in str(found)
    follow(found.remedy)
    connector().connect("test").close()


def test_other_host_key_is_refused_and_the_remedy_replaces_it(
    connector: Connect, ssh_server: SshServer, tmp_path: Path
) -> None:
    """S02: another server may have taken the address; it gets neither a login nor a byte of the database."""
    generate_key(tmp_path / "other")
    ssh_server.trust(tmp_path / "other")
    found = refusal(connector())
    assert isinstance(found, ConfigurationError)
    assert "host key is not the one in" in str(found)
    assert ssh_server.logins == 0
    follow(found.remedy)
    connector().connect("test").close()


def test_refused_key_may_be_allowed_while_the_daemon_retries(connector: Connect, ssh_server: SshServer) -> None:
    """P65: a key that is being rotated is refused for some time; the remedy's command prints the line to add."""
    ssh_server.authorized.write_text("")
    found = refusal(connector())
    assert isinstance(found, SourceUnavailable)
    assert "refuses user" in str(found)
    command = str(found.remedy).partition("(")[2].partition(")")[0]
    printed = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout
    ssh_server.authorized.write_text(printed)
    connector().connect("test").close()


def test_forwarding_that_is_not_allowed_is_a_missing_right(connector: Connect, ssh_server: SshServer) -> None:
    """Administrators let accounts of tunnels connect to some addresses only."""
    key = ssh_server.authorized.read_text()
    ssh_server.authorized.write_text(f'permitopen="127.0.0.1:1" {key}')
    found = refusal(connector())
    assert isinstance(found, RightMissing)
    assert "AllowTcpForwarding local" in str(found.remedy)


def test_silent_database_is_distinguished_from_a_silent_ssh_server(
    shop: Database, connector: Connect, ssh_server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The administrator of one of the two is called at night."""
    monkeypatch.setattr(ssh_tunnel, "CONNECT_TIMEOUT_S", 1)
    assert "port 1: Connection refused" in str(refusal(connector(port=1)))
    assert ssh_server._process is not None
    ssh_server._process.send_signal(signal.SIGSTOP)
    try:
        assert "timed out" in str(refusal(connector()))
    finally:
        ssh_server._process.send_signal(signal.SIGCONT)
    shop.server.stop()
    try:
        assert "connect failed: Connection refused" in str(refusal(connector()))
    finally:
        shop.server.start()
    assert "Could not resolve hostname" in str(refusal(connector(host="nowhere.invalid")))


def test_key_that_cannot_be_used_is_named(connector: Connect, ssh_server: SshServer, tmp_path: Path) -> None:
    """A wrong path, a key that others may read, one with a passphrase, for which a daemon has no terminal."""
    assert "No such file" in str(refusal(connector(key_file="/none")))
    ssh_server.key.chmod(0o644)
    found = refusal(connector())
    assert "every user of this machine can read the private key" in str(found)
    subprocess.run(shlex.split(str(found.remedy)), check=True)
    connector().connect("test").close()
    broken = tmp_path / "broken"
    broken.write_text("no key\n")
    broken.chmod(0o600)
    found = refusal(connector(key_file=str(broken)))
    assert isinstance(found, ConfigurationError)
    assert "cannot be used" in str(found)


def test_error_of_a_machine_without_ssh_names_the_package(connector: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images have no client of OpenSSH."""
    monkeypatch.setattr(ssh_tunnel, "PROGRAM", "ssh-that-is-not-installed")
    assert "apt install openssh-client" in str(refusal(connector()))


def test_closed_connections_leave_no_process(connector: Connect, ssh_server: SshServer) -> None:
    """A daemon opens some connections every minute, for years."""
    made = connector()
    connections = [made.connect("test") for _ in range(3)]
    assert len(links(ssh_server)) == 3
    for connection in connections:
        made.discard(connection)
    wait_until(lambda: not links(ssh_server), "ssh to end")


def test_nothing_of_ssh_is_taken_from_files_of_the_user() -> None:
    """A ssh_config may switch the check of host keys off, or run commands."""
    ssh = Ssh.model_validate({"host": "b", "user": "u", "key_file": "/k %h", "known_hosts": "/known %h hosts"})
    command = ssh_tunnel.Tunnel(ssh, "::1", 5432).command()
    assert command[:3] == ["ssh", "-F", "none"]
    assert "StrictHostKeyChecking=yes" in command
    assert 'UserKnownHostsFile="/known %%h hosts"' in command
    assert command[command.index("-i") + 1] == "/k %%h"
    assert command[-4:] == ["-W", "[::1]:5432", "--", "b"]
