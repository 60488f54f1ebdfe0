"""A start whose log in Kafka never answers, while its source does: what it reports, how it ends, how a stop ends it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.wiring import logs

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def shop() -> Iterator[Database]:
    with PostgresServer() as server:
        made = server.create_database("shop")
        made.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        yield made


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen(8)
        yield made


def settings(folder: Path, shop: Database, port: int) -> Path:
    path = folder / "cdcflow.yaml"
    kafka = f"{{brokers: '127.0.0.1:{port}', topic: shop}}"
    path.write_text(f"source: {{kind: postgres, url: '{shop.url}'}}\nlog: {{kafka: {kafka}}}\n")
    return path


def test_brokers_that_never_answer_end_the_start_with_what_was_tried(
    shop: Database, listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a source that never answers: a wrong address is more likely than an unavailable server."""
    topics = logs.topics
    quick: Any = lambda kafka: replace(topics(kafka), wait_s=0.3)  # noqa: E731
    monkeypatch.setattr(logs, "topics", quick)
    port = listening.getsockname()[1]
    result = CliRunner().invoke(app, ["run", "--config", str(settings(tmp_path, shop, port))])
    assert result.exit_code == 74, result.output
    first, *remedy = result.stderr.splitlines()
    named = f"has not reached the log since it started (brokers 127.0.0.1:{port}, topic shop)"
    assert first.startswith(f"SinkUnavailable: cdcflow {named}: ")
    assert "  or start `cdcflow run --wait`, which tries again until it answers" in remedy
    assert remedy[-1] == "  read more: cdcflow explain-error broker-unreachable"


def test_stop_while_brokers_are_silent_is_no_failure(shop: Database, listening: socket.socket, tmp_path: Path) -> None:
    """The client library waits half a minute in one call, and a signal must be handled in the meantime."""
    path = settings(tmp_path, shop, listening.getsockname()[1])
    command = [sys.executable, "-m", "cdcflow.cli", "run", "--wait", "--config", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        listening.settimeout(60)
        connection, _ = listening.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()
