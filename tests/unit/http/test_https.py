"""HTTPS: the certificate, its renewal, and connections that never finish their handshake."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from tests.support.certificates import HERE, Authority
from tests.support.polling import wait_until

from cdcflow.config import AccessToken, Config, ServerTls, Service
from cdcflow.daemon.http_component import Http
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.errors import ConfigurationError
from cdcflow.http import tls_connection
from cdcflow.http.certificate import ServerCertificate
from cdcflow.http.connection import CONNECTIONS_MAX
from cdcflow.http.tls_connection import HANDSHAKES_MAX

Events = list[tuple[str, Mapping[str, object]]]


class Secured:
    """An HTTPS server whose certificate is in two files."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.cert, self.key = folder / "server.crt", folder / "server.key"
        self.events: Events = []
        self.renew("first")
        files = ServerTls(cert=self.cert, key=self.key)
        certificate = ServerCertificate(files, "service.tls", lambda event, fields: self.events.append((event, fields)))
        self.server = HttpServer("127.0.0.1:0", lambda: {"state": "capturing"}, certificate=certificate)

    def renew(self, name: str, *, only: str | None = None) -> None:
        """Replace the files, as a renewal does. `only`: one of them, as in the middle of a renewal."""
        found = self.authority.certificate(name, HERE)
        for file, given in ((self.cert, found["ssl_cert"]), (self.key, found["ssl_key"])):
            if only in (None, file.name):
                new = file.with_suffix(".new")
                new.write_bytes(Path(given).read_bytes())
                new.chmod(0o600)
                os.replace(new, file)

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.path))

    def ask(self, path: str = "/healthz") -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=self.trusting())
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def shown(self) -> str:
        """The name in the certificate that a new connection gets."""
        raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
        with self.trusting().wrap_socket(raw, server_hostname="127.0.0.1") as secured:
            found = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            return str(found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    made.server.start()
    yield made
    made.server.close()


def test_page_api_and_probes_are_https(secured: Secured) -> None:
    """Tokens and row values are readable on the way otherwise."""
    assert {path: secured.ask(path) for path in ("/healthz", "/metrics", "/status", "/")} == dict.fromkeys(
        ("/healthz", "/metrics", "/status", "/"), 200
    )


def test_request_in_the_first_flight_is_answered(secured: Secured) -> None:
    """Clients send their request together with the end of the handshake."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", secured.server.port), timeout=60) as raw:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = secured.trusting().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(1 << 16))
            client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            raw.sendall(outgoing.read())  # the end of the handshake and the request in one packet
            found = b""
            while b"alive" not in found:
                received = raw.recv(1 << 16)
                assert received, found
                incoming.write(received)
                with contextlib.suppress(ssl.SSLWantReadError):
                    while piece := client.read(1 << 16):
                        found += piece


def test_plain_http_and_old_versions_are_refused(secured: Secured) -> None:
    """TLS 1.0 and 1.1 are broken; a token that was sent in plain text has been read already."""
    connection = http.client.HTTPConnection("127.0.0.1", secured.server.port, timeout=60)
    connection.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()
    old = secured.trusting()
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", secured.server.port), timeout=60) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw, server_hostname="127.0.0.1")
    assert secured.ask() == 200


def test_renewed_certificate_counts_from_the_next_connection(secured: Secured) -> None:
    """Certificates of today are valid for weeks; a daemon runs for months."""
    assert secured.shown() == "first"
    connection = http.client.HTTPSConnection("127.0.0.1", secured.server.port, timeout=60, context=secured.trusting())
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    secured.renew("second")
    assert secured.shown() == "second"
    connection.request("GET", "/healthz")
    assert connection.getresponse().read(), "an open connection continues"
    connection.close()
    assert secured.events == [("certificate renewed", {"setting": "service.tls"})]


def test_half_a_renewal_keeps_the_previous_certificate(secured: Secured) -> None:
    """The two files are replaced one after the other, and a renewal may go wrong."""
    secured.renew("second", only="server.crt")
    assert [secured.shown(), secured.shown()] == ["first", "first"]
    ((event, fields),) = secured.events
    assert event == "certificate not renewed"
    assert "the key does not belong to the certificate" in str(fields["reason"])
    secured.cert.unlink()
    assert secured.shown() == "first"
    secured.renew("third")
    assert secured.shown() == "third"
    assert secured.events[-1][0] == "certificate renewed"


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x00", b"handshake"])
def test_handshakes_that_never_end_keep_no_probe_out(secured: Secured, said: bytes) -> None:
    """A client needs no token to connect; the process's file descriptors are needed for the log."""
    with contextlib.ExitStack() as stack:
        for _ in range(3 * HANDSHAKES_MAX):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", secured.server.port), timeout=60))
            with contextlib.suppress(OSError):  # it may be closed already
                idle.sendall(said)
        assert secured.ask() == 200
        assert secured.server._server is not None
        made: Any = secured.server._server.config.http
        assert len(made._pending) <= HANDSHAKES_MAX


def test_secured_connections_without_a_request_keep_no_probe_out(secured: Secured) -> None:
    """As without TLS: the one that has waited longest makes room, whether or not its client says goodbye."""
    context = secured.trusting()
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 20):
            raw = socket.create_connection(("127.0.0.1", secured.server.port), timeout=60)
            stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))
        assert secured.ask() == 200
        assert secured.server._server is not None
        assert len(secured.server._server.server_state.connections) <= CONNECTIONS_MAX + 1


def test_handshake_that_takes_too_long_ends(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few silent clients must not stay for as long as they like."""
    monkeypatch.setattr(tls_connection, "ARRIVES_WITHIN_S", 0.2)
    with socket.create_connection(("127.0.0.1", secured.server.port), timeout=30) as silent:
        silent.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1000) == b""


def test_server_ends_while_handshakes_are_pending(tmp_path: Path) -> None:
    """A restart must not wait for a silent client."""
    made = Secured(tmp_path)
    made.server.start()
    with socket.create_connection(("127.0.0.1", made.server.port), timeout=30):
        assert made.ask() == 200
        made.server.close()
        thread = made.server._thread
        assert thread is not None
        wait_until(lambda: not thread.is_alive(), "the server to end")


def test_page_becomes_https_while_the_daemon_runs(tmp_path: Path) -> None:
    """As with every setting of `service`: the same port, no restart."""
    made = Secured(tmp_path)
    plain = HttpServer("127.0.0.1:0", lambda: {"state": "capturing"})
    plain.start()
    made.server._address = ("127.0.0.1", plain.port)
    made.server.start(plain)
    plain.close()
    try:
        assert made.ask() == 200
    finally:
        made.server.close()


def test_daemon_serves_again_when_certificate_or_limit_change() -> None:
    """`cdcflow apply` would report that they count, and nothing would have changed."""
    http = Http(lambda: CONFIG, cast("Any", None), lambda request, by: None, lambda event, fields: None)
    with_tls = {"tls": {"cert": "server.pem"}}
    found = {str(http.made_of(_with(service))) for service in ({}, with_tls, {"requests_per_second_max": 5})}
    assert len(found) == 3


CONFIG = Config.model_validate(
    {"source": {"kind": "postgres", "url": "postgresql://cdc@db/shop"}, "log": {"path": "log"}}
)


def _with(service: dict[str, Any]) -> Config:
    return CONFIG.model_copy(update={"service": Service.model_validate({"listen": "127.0.0.1:8079", **service})})


def test_cookie_of_a_session_is_for_https_only(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a browser would send it over plain HTTP to the same name."""
    monkeypatch.setenv("OPS_TOKEN", "o" * 24)
    secured.server._access._tokens = (AccessToken(name="ops", role="operate", token="${env:OPS_TOKEN}"),)  # noqa: S106  a reference
    connection = http.client.HTTPSConnection("127.0.0.1", secured.server.port, timeout=60, context=secured.trusting())
    origin = f"https://127.0.0.1:{secured.server.port}"
    headers = {"Content-Type": "application/json", "Origin": origin, "Sec-Fetch-Site": "same-origin"}
    connection.request("POST", "/api/v1/session", '{"token": "oooooooooooooooooooooooo"}', headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200
    assert "; secure" in str(answer.headers["Set-Cookie"]).lower()


def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path: Path) -> None:
    """The message names the setting, because that is what has to change."""
    made = Authority(tmp_path, "authority").certificate("server", HERE)
    os.chmod(made["ssl_key"], 0o644)
    for cert, key, reason in (
        ("none.crt", made["ssl_key"], "No such file|every user of this machine"),
        (made["ssl_cert"], made["ssl_key"], "every user of this machine can read the private key"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            ServerCertificate(ServerTls(cert=tmp_path / cert, key=Path(key)), "serve.tls")
        assert refused.value.runbook == "tls"
