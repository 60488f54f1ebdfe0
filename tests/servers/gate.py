"""An HTTP proxy that a test controls: it counts requests, answers them itself, or loses requests and answers.

client ──▶ HttpGate ──▶ server        rule(request) ── None       forward
                                                    ── Answer     the gate's own answer
                                                    ── LOST       forward, and end the connection without an answer
                                                    ── CUT        end the connection, forward nothing
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Literal
from urllib.parse import parse_qs

from tests.servers.http_threads import ThreadedServer

LOST: Literal["lost"] = "lost"
CUT: Literal["cut"] = "cut"

_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, status: int, content: object) -> Answer:
        return cls(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


Rule = Callable[[Request], Answer | Literal["lost", "cut"] | None]


class HttpGate(ThreadedServer):
    """A context manager. `rule` and `change` (of an answer of the server) may be set at any time; `requests` are those
    so far."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.requests: list[Request] = []
        self.rule: Rule = lambda request: None
        self.change: Callable[[Request, Answer], Answer] = lambda request, answer: answer
        super().__init__(_handler(self))

    def decide(self, request: Request) -> Answer | Literal["lost", "cut"] | None:
        return self.rule(request)

    def forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        try:
            connection.request(request.method, request.path, request.body or None, dict(request.headers))
            found = connection.getresponse()
            return self.change(request, Answer(found.status, found.read(), dict(found.getheaders())))
        finally:
            connection.close()


def _handler(gate: HttpGate) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, dict(self.headers), body)
            gate.requests.append(request)
            found = gate.decide(request)
            if found is None or found == LOST:
                answer = gate.forward(request)
            if found in (LOST, CUT):
                self.close_connection = True
                return
            self._answer(found if isinstance(found, Answer) else answer)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815  names of its base class

        def _answer(self, answer: Answer) -> None:
            self.send_response(answer.status)
            held = answer.headers.get("Content-Length") if self.command == "HEAD" else None
            for name, value in answer.headers.items():
                if name.lower() not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", held or str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def log_message(self, *given: object) -> None:
            """Log nothing."""

    return Handler


class TokenGate(HttpGate):
    """A gate that also grants tokens, at `/oauth/tokens`, and passes only requests with one that it accepts.

    `expire` ends all tokens at once. `lifetime_s`: reported with each token. `config`: what the answers that describe a
    table contain in addition, as vended credentials are.
    """

    client, secret = "lake-client", "lake-secret-71f3"

    def __init__(self, target: int, lifetime_s: int | None = None) -> None:
        super().__init__(target)
        self.lifetime_s = lifetime_s
        self.granted: list[str] = []
        self.accepted: set[str] = set()
        self.config: Callable[[], Mapping[str, str]] = dict
        self.change = self._with_config

    @property
    def credential(self) -> str:
        return f"{self.client}:{self.secret}"

    @property
    def token_server(self) -> str:
        return f"{self.uri}/oauth/tokens"

    def expire(self) -> None:
        self.accepted.clear()

    def decide(self, request: Request) -> Answer | Literal["lost", "cut"] | None:
        if request.path == "/oauth/tokens":
            return self._grant(request)
        if (found := super().decide(request)) is not None:
            return found
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.accepted:
            told = {
                "message": f"not a token: {request.headers.get('Authorization')}",
                "type": "NotAuthorized",
                "code": 401,
            }
            return Answer.of_json(401, {"error": told})
        return None

    def _grant(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if (form.get("client_id"), form.get("client_secret")) != (self.client, self.secret):
            return Answer.of_json(
                401, {"error": "invalid_client", "error_description": f"not {form.get('client_secret')}"}
            )
        token = f"token-{len(self.granted)}-7b1fd0a4c3e8"
        self.granted.append(token)
        self.accepted.add(token)
        told = {"access_token": token, "token_type": "bearer"}
        return Answer.of_json(200, told if self.lifetime_s is None else {**told, "expires_in": self.lifetime_s})

    def _with_config(self, request: Request, answer: Answer) -> Answer:
        if answer.status != 200 or "/tables" not in request.path or not (more := self.config()):
            return answer
        told = json.loads(answer.body)
        told["config"] = {**told.get("config", {}), **more}
        return Answer.of_json(200, told)


__all__ = ["CUT", "LOST", "Answer", "HttpGate", "Request", "TokenGate"]
