"""How many requests each caller may send."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from cdcflow.config import AccessToken
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.http.access import Access
from cdcflow.http.rate_limit import CALLERS_MAX, RateLimit

TOKENS = {"one": "1" * 24, "two": "2" * 24}


def test_caller_may_send_a_burst_and_then_as_many_as_the_limit() -> None:
    """A program in a loop must not take the daemon's processors from the capture."""
    now = [0.0]
    limit = RateLimit(2.0, clock=lambda: now[0])
    assert [limit.wait_s("a") for _ in range(12)] == [0] * 10 + [1, 1]
    assert limit.wait_s("b") == 0, "another caller is not concerned"
    now[0] = 0.4
    assert limit.wait_s("a") == 1
    now[0] = 0.5
    assert [limit.wait_s("a"), limit.wait_s("a")] == [0, 1]
    now[0] = 100.0
    assert [limit.wait_s("a") for _ in range(11)] == [0] * 10 + [1]


def test_retry_after_is_long_enough_where_the_limit_is_low() -> None:
    """A client that waits for that time is answered."""
    now = [0.0]
    limit = RateLimit(0.1, clock=lambda: now[0])
    for _ in range(10):
        assert limit.wait_s("a") == 0
    now[0] += limit.wait_s("a")
    assert limit.wait_s("a") == 0


def test_number_of_callers_is_bounded_and_the_busy_ones_are_remembered() -> None:
    """A client with a network of addresses must not fill the memory, or free itself of the limit by that."""
    limit = RateLimit(1.0, clock=lambda: 0.0)
    for _ in range(10):
        limit.wait_s("busy")
    for number in range(CALLERS_MAX + 10):
        limit.wait_s(f"address {number}")
        if number % 1000 == 0:
            assert limit.wait_s("busy") > 0
    assert len(limit._buckets) == CALLERS_MAX


def test_without_the_setting_there_is_no_limit() -> None:
    """Files of earlier versions mean what they meant."""
    limit = RateLimit(None)
    assert {limit.wait_s("a") for _ in range(1000)} == {0}


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    for name, token in TOKENS.items():
        monkeypatch.setenv(f"TOKEN_{name}", token)
    tokens = [AccessToken(name=name, role="read", token=f"${{env:TOKEN_{name}}}") for name in TOKENS]
    access = Access(tokens, clock=lambda: 0.0, requests_per_second_max=0.01)
    made = HttpServer("127.0.0.1:0", lambda: {"state": "capturing"}, access=access)
    made.start()
    yield made
    made.close()


def ask(server: HttpServer, path: str, token: str | None) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("Retry-After")
    finally:
        connection.close()


def test_too_many_requests_of_a_token_get_429_and_others_are_answered(limited: HttpServer) -> None:
    """One dashboard that polls too fast is refused; probes, metrics and other tokens are not concerned."""
    for _ in range(10):
        assert ask(limited, "/status", TOKENS["one"]) == (200, None)
    assert ask(limited, "/status", TOKENS["one"]) == (429, "100")
    assert ask(limited, "/status", TOKENS["two"]) == (200, None)
    for path in ("/healthz", "/metrics", "/"):
        for _ in range(12):
            assert ask(limited, path, TOKENS["one"])[0] == 200


def test_address_that_guesses_tokens_is_limited(limited: HttpServer) -> None:
    """Guesses count by address, so that they take no requests from a token, however many different ones it tries."""
    assert [ask(limited, "/status", f"guess number {n} of a token")[0] for n in range(12)] == [401] * 10 + [429] * 2
    assert ask(limited, "/status", TOKENS["one"]) == (200, None)
