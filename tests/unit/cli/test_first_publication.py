"""`cdcflow publish` whose brokers never answer: its messages, how it ends, and how a stop ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.publish import producer

CANARY = "c4n4ry-s3cret"


def settings(folder: Path, port: int) -> Path:
    """Settings next to a log of one row."""
    HandLog(folder / "log").segment([(make_table("orders", id="int64"), "c", {"id": 1})])
    path = folder / "cdcflow.yaml"
    kafka = f"{{brokers: '127.0.0.1:{port}', topic_prefix: shop, username: me, password: '${{env:P}}'}}"
    path.write_text(
        "source: {kind: postgres, url: 'postgresql://cdc@127.0.0.1:1/shop'}\nlog: {path: log}\n"
        f"publish: {{kafka: {kafka}}}\n"
    )
    return path


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield listening


@pytest.mark.parametrize("once", [[], ["--once"]])
def test_brokers_that_never_answer_end_it_with_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: list[str]
) -> None:
    """It printed lines of retries indefinitely; the password is in none of them (S03)."""
    monkeypatch.setenv("P", CANARY)
    monkeypatch.setattr(producer, "WAIT_S", 0.2)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # no process listens there
        port = held.getsockname()[1]
        result = CliRunner().invoke(app, ["publish", "--config", str(settings(tmp_path, port)), *once])
    assert result.exit_code == 74
    first, *remedy = result.stderr.splitlines()
    assert first.startswith(
        "SinkUnavailable: cdcflow has not reached the brokers of publish.kafka since it started"
        f" (brokers 127.0.0.1:{port}, topics shop.*, user me): making topics:"
    )
    command = " ".join(["cdcflow publish", *once, "--wait"])
    assert remedy == [
        "  check that they run and that publish.kafka.brokers names them",
        f"  or start `{command}`, which tries again until it answers",
        "  read more: cdcflow explain-error broker-unreachable",
    ]
    assert "publishing failed" in result.stdout
    assert CANARY not in result.output


def test_stop_while_brokers_are_silent_is_no_failure(tmp_path: Path, silent: socket.socket) -> None:
    """The library waits half a minute for an answer, and a service manager must not find a failure after a stop."""
    path = settings(tmp_path, silent.getsockname()[1])
    command = [sys.executable, "-m", "cdcflow.cli", "publish", "--config", str(path), "--wait"]
    environment = {**os.environ, "P": CANARY}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=120)
        assert (process.returncode, "start broken off" in output) == (0, True), output
    finally:
        process.kill()
        process.communicate()
