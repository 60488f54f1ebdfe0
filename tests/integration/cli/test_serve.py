"""`cdcflow serve` as a process: what it acknowledged survives a SIGKILL, and the log is an ordinary one."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_until
from tests.support.push.collections import asked, table

from cdcflow import wiring
from cdcflow.cli.failure import exit_code
from cdcflow.config import load
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.maintenance.retention import ExpiryRule
from cdcflow.model.position import SourceIdentity
from cdcflow.push.operations import parse_operations
from cdcflow.push.remembered import Once
from cdcflow.push.writer import Answer, Request, Written
from cdcflow.sinks.files.log import FileLog
from cdcflow.wiring import open_push_log

TOKEN = "t" * 24
SETTINGS = """
serve:
  listen: 127.0.0.1:0
  tokens:
    - {name: shop, role: operate, token: "${env:SERVE_TOKEN}"}
  collections:
    - name: orders
      key: [id]
      json_schema:
        type: object
        properties: {id: {type: integer}, note: {type: string}, hits: {type: integer}}
        required: [id]
log: {path: ./log, seal: {age_max: 200ms}}
merge: {engine: local, warehouse: ./warehouse}
"""
COUNTER = 0


STARTED: list[subprocess.Popen[str]] = []


class Served:
    """A process of `cdcflow serve`; the test's end ends it at the latest."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "SERVE_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cdcflow", "serve", "--config", str(folder / "cdcflow.yaml")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        STARTED.append(self.process)
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r" serving .*port=(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("".join(self.lines))

    def send(self, operations: Any, key: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Idempotency-Key": key}
        try:
            connection.request("POST", "/api/v1/collections/orders", json.dumps(operations), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            return dict(json.loads(answer.read()))
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def terminate(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, "".join(self.lines) + rest


@dataclass
class Client:
    """Writes one order after another, each with the next value of a counter, in one transaction; repeats requests
    without an answer.
    """

    number: int
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    sent: int = 0
    wrong: list[BaseException] = field(default_factory=list)

    def request(self, n: int) -> tuple[list[dict[str, Any]], str]:
        id_ = self.number * 1000 + n
        put = {"op": "put", "value": {"id": id_, "note": f"order {id_}"}}
        return [put, {"op": "increment", "key": COUNTER, "value": {"hits": 1}}], f"{self.number}-{n}"

    def run(self, served: Served) -> None:
        try:
            while True:
                n = len(self.answers) + 1
                self.sent = n
                self.answers[n] = served.send(*self.request(n))
        except (OSError, http.client.HTTPException):
            return
        except BaseException as error:  # noqa: BLE001  raised by the test
            self.wrong.append(error)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SERVE_TOKEN", TOKEN)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    yield tmp_path
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()


def answers_of(clients: list[Client]) -> int:
    return sum(len(client.answers) for client in clients)


def wait_for_answers(clients: list[Client], count: int, threads: list[threading.Thread]) -> None:
    """Until this many have arrived, or all clients have ended."""

    def have_arrived() -> bool:
        return answers_of(clients) >= count or not any(thread.is_alive() for thread in threads)

    wait_until(have_arrived, f"{count} answers")


def test_answered_requests_are_in_the_log_once_and_in_order_after_kills(folder: Path) -> None:
    """An answer is a promise; a request without one is applied wholly or not at all, and may be repeated."""
    seed = random.randrange(1 << 30)
    print(f"seed={seed}")
    rng = random.Random(seed)
    clients = [Client(number) for number in range(1, 5)]
    served = Served(folder)
    served.send({"op": "put", "value": {"id": COUNTER, "hits": 0}}, "counter")
    for _ in range(3):
        before = answers_of(clients)
        threads = [threading.Thread(target=client.run, args=(served,)) for client in clients]
        for thread in threads:
            thread.start()
        wait_for_answers(clients, before + 8, threads)
        time.sleep(rng.uniform(0, 0.7))
        served.kill()
        for thread in threads:
            thread.join()
        assert [client.wrong for client in clients] == [[], [], [], []]
        served = Served(folder)
    for client in clients:
        client.answers[client.sent] = served.send(*client.request(client.sent))
        for n in rng.sample(sorted(client.answers), 3):
            assert served.send(*client.request(n)) == client.answers[n], "a request that is sent again"
    code, lines = served.terminate()
    assert code == 0, lines

    answered = {client.number * 1000 + n: a for client in clients for n, a in client.answers.items()}
    assert len(answered) > 20
    rows = [row for _, _, part in asked(folder / "log").changes("push.orders") for row in part.to_pylist()]
    by_offset = {row["_offset"]: row for row in rows}
    for id_, answer in answered.items():
        first = by_offset[answer["first_offset"]]
        assert (first["id"], first["_op"], first["_txn"]) == (id_, "c", answer["transaction"])
        counter = by_offset[answer["last_offset"]]
        assert (counter["id"], counter["hits"]) == (COUNTER, answer["results"][1]["values"]["hits"])
        assert counter["_txn"] == answer["transaction"]
    assert len(rows) == 2 * len(answered) + 1
    assert sorted(answer["results"][1]["values"]["hits"] for answer in answered.values()) == list(
        range(1, len(answered) + 1)
    )
    in_order = sorted(answered.values(), key=lambda answer: int(answer["transaction"]))
    assert [one["results"][1]["values"]["hits"] for one in in_order] == list(range(1, len(answered) + 1))
    assert set(table(folder / "log")) == {COUNTER, *answered}

    for command in (["merge"], ["log", "check", "--deep"], ["get", "push.orders", str(COUNTER)]):
        done = subprocess.run(
            [sys.executable, "-m", "cdcflow", *command, "--config", str(folder / "cdcflow.yaml")],
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"hits: {len(answered)}" in done.stdout


def test_log_of_a_capture_is_refused_and_stays_unchanged(folder: Path) -> None:
    """One writer per log; the remedy is a separate folder."""
    FileLog.open(folder / "log", SourceIdentity("postgres", "7", "shop")).close()
    before = (folder / "log" / "log.json").read_bytes(), (folder / "log" / "epoch").read_bytes()
    with pytest.raises(ConfigurationError, match="a capture from postgres writes it") as caught:
        open_push_log(load(folder / "cdcflow.yaml"), lambda event, fields: None)
    assert exit_code(caught.value) == 78
    assert ((folder / "log" / "log.json").read_bytes(), (folder / "log" / "epoch").read_bytes()) == before
    text = (folder / "cdcflow.yaml").read_text()
    (folder / "cdcflow.yaml").write_text(text.replace("./log", "./log-of-its-own"))
    open_push_log(load(folder / "cdcflow.yaml"), lambda event, fields: None).writer.stop()


def test_changed_schema_is_accepted_or_refused_at_the_start(folder: Path) -> None:
    """A new optional property is a new column of the same table; another type is refused before the log is opened."""
    settings = folder / "cdcflow.yaml"

    def again(properties: str, **row: object) -> None:
        settings.write_text(SETTINGS.replace("note: {type: string}", properties))
        run(settings, {"op": "put", "value": {"id": 1, **row}})

    again("note: {type: string}", note="x")
    again("extra: {type: boolean}, note: {type: string}", note="x", extra=True)
    assert table(folder / "log")[1] == {"id": 1, "note": "x", "hits": None, "extra": True}
    with pytest.raises(ConfigurationError, match="note is integer, and in the log string"):
        again("extra: {type: boolean}, note: {type: integer}", extra=False)


def run(settings: Path, *requests: Any, key: str | None = None) -> list[Answer]:
    """Return the answers of a process to these requests, sent one after another; then it ends."""
    opened = open_push_log(load(settings), lambda event, fields: None)
    try:
        opened.writer.start()
        shape = opened.shapes["orders"]
        once = None if key is None else Once.of("shop", "orders", key)
        return [
            opened.writer.submit(Request(shape, parse_operations(shape, r), 10, True, once)).result(30)
            for r in requests
        ]
    finally:
        opened.writer.stop()


def test_rows_outlive_the_segments_they_were_in(folder: Path) -> None:
    """A state keeps them, and the answers that are remembered; without one the log no longer knows a key's row."""
    settings = folder / "cdcflow.yaml"
    settings.write_text(SETTINGS.replace("200ms}}", "200ms}, retention: {age: 30d, state: true}}"))
    [first] = run(settings, [{"op": "put", "value": {"id": n, "hits": n}} for n in range(5)], key="k")
    run(settings, {"op": "delete", "key": 4})
    run(settings, {"op": "put", "value": {"id": 9}})
    config = load(settings)
    bounds = wiring.sealed_bounds(config)
    assert wiring.keeping(config).keep_state(bounds[1][1]) == ""
    wiring.retention(config, grace_s=0).expire(ExpiryRule(before_cut=10**6, last_offset_max=bounds[1][1]))
    assert wiring.open_for_queries(config).first_offset() == bounds[2][0]
    add = {"op": "increment", "key": 3, "value": {"hits": 10}}
    puts = [{"op": "put", "value": {"id": id_}} for id_ in (2, 7)]
    answers = run(settings, add, {"op": "delete", "key": 4}, *puts)
    written = [json.loads(answer.answer)["results"][0]["op"] for answer in answers if isinstance(answer, Written)]
    assert written == ["u", None, "u", "c"]
    assert isinstance(first, Written)
    assert run(settings, [{"op": "put", "value": {"id": 0}}], key="k") == [Written(first.answer, again=True)]
    assert table(folder / "log")[3]["hits"] == 13
    shutil.rmtree(folder / "log" / "states")
    with pytest.raises(HistoryLost, match="has expired"):
        run(settings, add)
    settings.write_text(settings.read_text().replace("./log", "./new-log"))
    assert len(run(settings, puts[0])) == 1
