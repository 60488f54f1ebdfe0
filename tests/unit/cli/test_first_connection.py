"""A start whose source or log never answers: its messages, how it ends, and how a stop ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.wiring import addresses

CANARY = "c4n4ry-s3cret"
URLS = {"postgres": "postgresql://cdc@127.0.0.1:{}/shop", "mysql": "mysql://cdc@127.0.0.1:{}/"}
TRIED = {
    "postgres": "host 127.0.0.1, port {}, user cdc, database shop",
    "mysql": "host 127.0.0.1, port {}, user cdc",
}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port without a listener; it is held, so that no other process listens there during the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield listening


def settings(folder: Path, kind: str, port: int) -> Path:
    url = URLS[kind].format(port)
    path = folder / "cdcflow.yaml"
    source = f"{{kind: {kind}, url: '{url}', password: '${{env:SHOP_PASSWORD}}', tables: [shop.*]}}"
    path.write_text(f"source: {source}\nlog: {{path: log}}\n")
    return path


@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize("command", ["run", "backfill"])
def test_source_that_never_answers_ends_the_start_with_what_was_tried(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    """A user who mistyped a host saw only lines of retries; the password is in none of them (S03)."""
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    path = settings(tmp_path, kind, closed_port)
    result = CliRunner().invoke(app, [command, "--config", str(path)])
    assert result.exit_code == 69
    where = TRIED[kind].format(closed_port)
    first, *remedy = result.stderr.splitlines()
    assert first.startswith(
        f"SourceUnavailable: cdcflow has not reached the source since it started ({where}): connecting to 127.0.0.1:"
    )
    assert "refused" in first
    assert remedy == [
        "  check that it runs and that `source` in the settings names it",
        "  or start `cdcflow run --wait`, which tries again until it answers",
        "  read more: cdcflow explain-error source-unavailable",
    ]
    # The same for a reader of log lines: the final error is an event, and nothing was retried.
    assert [line.split(" ", 1)[1].split(" kind=")[0] for line in result.stdout.splitlines()] == (
        ["capture failed"] if command == "run" else []
    )
    assert CANARY not in result.output


def test_log_in_kafka_is_named_with_its_brokers(tmp_path: Path) -> None:
    """The brokers are the other address that a start depends on."""
    path = settings(tmp_path, "postgres", 5432)
    kafka = (
        "{brokers: 'k1:9092,k2:9092', topic: shop, username: me, password: '${env:P}', options: {sasl.mechanism: X}}"
    )
    path.write_text(path.read_text().replace("{path: log}", f"{{kafka: {kafka}}}"))
    assert addresses(load(path)) == {
        "source": "host 127.0.0.1, port 5432, user cdc, database shop",
        "log": "brokers k1:9092,k2:9092, topic shop, user me",
    }


@contextlib.contextmanager
def daemon(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`cdcflow run` as a child process; killed if it still runs at the end."""
    command = [sys.executable, "-m", "cdcflow.cli", "run", "--config", str(path), *options]
    environment = {**os.environ, "SHOP_PASSWORD": CANARY}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spread(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_while_it_waits_is_no_failure(tmp_path: Path, closed_port: int, number: signal.Signals) -> None:
    """A service manager that stops a waiting daemon must not find it failed."""
    with daemon(settings(tmp_path, "postgres", closed_port), "--wait") as process:
        assert process.stdout is not None
        assert "capture interrupted" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == 0
        assert CANARY not in process.stdout.read()


def test_stop_while_a_server_is_silent_is_no_failure(tmp_path: Path, silent: socket.socket) -> None:
    """The library waits for the first answer and cannot be woken; the process ended with 75, as if data were
    unverified."""
    with daemon(settings(tmp_path, "mysql", silent.getsockname()[1])) as process:
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stdout is not None
        assert "start broken off" in process.stdout.read()
