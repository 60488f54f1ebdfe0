"""Two daemons with one lease on one log: one of them is killed, suspended or cut off, and the other one replaces it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Branch
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow import wiring
from cdcflow.cli.failure import FINDINGS
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import SourceUnavailable
from cdcflow.log.read import reader

STARTED, TAKEN, GIVEN_UP, STANDING_BY = "capture started", "lease taken", "lease released", "standing by"
CHUNK_READ = "range chunk read"
POLL_S = 0.01
FAULTS = ("kill", "suspend", "handover", "stop")
"""What happens to the active daemon. `suspend`: SIGSTOP until the other one has captured, then SIGCONT. `stop`: a
restart by SIGTERM."""
TRANSACTIONS = 20


@dataclass(slots=True)
class Member:
    """One of the daemons: its settings file, its process, and what it printed so far."""

    config: Path
    output: Path
    arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> None:
        with self.output.open("ab") as output:
            command = [sys.executable, "-m", "cdcflow", "run", "--wait", *self.arguments, "--config", str(self.config)]
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.config.parent, env=os.environ | self.environment
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def count(self, event: str) -> int:
        return self.text().count(f" {event}")

    def is_active(self) -> bool:
        text = self.text()
        return self.runs and text.rfind(f" {TAKEN}") > text.rfind(f" {GIVEN_UP}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Pair:
    """Two daemons on one log of a bank that is written to. A context manager.

    `changed`: settings of the second one that differ, `changed_first`: of the first one. `proxies`: one for each
    daemon, between it and the lease. `arguments`: more of them for `cdcflow run`.
    """

    bank: Branch
    lease: Mapping[str, Any]
    changed: Mapping[str, Any] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    proxies: Sequence[TcpProxy] = ()
    changed_first: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    environments: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    """Variables of each daemon's environment."""

    def __enter__(self) -> Pair:
        self.bank.other_settings = {**self.bank.other_settings, "service": {"lease": dict(self.lease)}}
        self.bank.configure()
        second = self.bank.config_path.with_name("second.yaml")
        configs = (self.bank.config_path, second)
        common = yaml.safe_load(self.bank.config_path.read_text())
        for config, changed in zip(configs, (self.changed_first, self.changed), strict=True):
            config.write_text(yaml.safe_dump(_merged(common, changed)))
        self.members = [
            Member(config, self.bank.folder / f"{config.stem}.out", self.arguments, environment=environment)
            for config, environment in zip(configs, self.environments, strict=True)
        ]
        with contextlib.ExitStack() as ended_if_it_fails:
            ended_if_it_fails.callback(self._end)
            self.members[0].start()
            wait_until(self.members[0].is_active, "the first daemon to be active", more=self.members[0].text)
            self._ready(self.members[1])
            wait_until(lambda: self.bank.has_reached(""), "the first backfill", more=self.text)
            ended_if_it_fails.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        for member in self.members:
            member.end()

    def text(self) -> str:
        return "\n".join(f"── {member.output.name}\n{member.text()}" for member in self.members)

    def active(self) -> Member:
        def only() -> Member | None:
            found = [member for member in self.members if member.is_active()]
            return found[0] if len(found) == 1 else None

        return wait_until(only, "one active daemon", more=self.text)

    def other(self, one: Member) -> Member:
        return next(member for member in self.members if member is not one)

    def take_over(self, fault: str) -> float:
        """Let the fault happen to the active daemon, and return after how many seconds the other one captures."""
        active = self.active()
        standby = self.other(active)
        self._ready(standby)
        started, given_up = standby.count(STARTED), active.count(GIVEN_UP)
        began = time.monotonic()
        self._happen(fault, active)
        wait_until(
            lambda: standby.count(STARTED) > started,
            f"the standby to capture after {fault}",
            more=self.text,
            pause_max_s=POLL_S,
        )
        took_s = time.monotonic() - began
        self._write_more()
        if fault == "suspend":
            active.signal(signal.SIGCONT)
        if fault == "cut off":
            self._proxy_of(active).mend()
        if fault in ("suspend", "handover", "cut off"):
            wait_until(lambda: active.count(GIVEN_UP) > given_up, "the replaced daemon to notice", more=self.text)
            assert active.runs, self.text()
        self._write_more()
        assert standby.is_active(), self.text()
        return took_s

    def _ready(self, standby: Member) -> None:
        """The standby runs, and has seen that another daemon is active."""
        if not standby.runs:
            waits = standby.count(STANDING_BY)
            standby.start()
            wait_until(lambda: standby.count(STANDING_BY) > waits, "the standby", more=self.text)

    def _happen(self, fault: str, active: Member) -> None:
        match fault:
            case "kill":
                active.signal(signal.SIGKILL)
            case "suspend":
                active.signal(signal.SIGSTOP)
            case "stop":
                active.signal(signal.SIGTERM)
            case "cut off":
                self._proxy_of(active).hold()
            case "handover":
                wait_until(partial(_accepts_handover, active), "the capture to accept the handover", more=self.text)
            case _:
                raise AssertionError(fault)

    def _proxy_of(self, member: Member) -> TcpProxy:
        return self.proxies[self.members.index(member)]

    def _write_more(self) -> None:
        before = self.bank.transactions
        self.bank.wait_until(lambda: self.bank.transactions > before + TRANSACTIONS, "the writer to continue")

    def read_again(self, table: str) -> None:
        """Have the active daemon read a table again, and return when it has begun."""
        active = self.active()
        begun = active.count(CHUNK_READ)
        ask(load(active.config).log.folder, {"op": "backfill", "tables": [f"{self.bank.schema}.{table}"]})
        wait_until(lambda: active.count(CHUNK_READ) > begun, f"rows of {table}", more=self.text, pause_max_s=POLL_S)

    def finish(self) -> None:
        """Stop writing, let the log catch up, end both daemons, and compare the log with the source."""
        self.bank.stop_writing()
        fence = self.bank.fence()
        self.bank.wait_until(lambda: self.bank.has_reached(fence), f"the log to pass the fence:\n{self.text()}")
        for member in self.members:
            if member.runs and member.process is not None:
                member.signal(signal.SIGTERM)
                assert member.process.wait(timeout=PATIENCE_S) == 0, self.text()
        assert "Traceback" not in self.text(), self.text()
        self.bank.assert_log_equals_source()
        assert_each_once(self.bank)


def _accepts_handover(member: Member) -> bool:
    """Request a handover. A capture that is starting, or connects again, refuses it for the time being."""
    try:
        ask(load(member.config).log.folder, {"op": "handover"}, timeout_s=PATIENCE_S)
    except SourceUnavailable as refusal:
        if "waiting to try again" not in str(refusal):
            raise
        return False
    return True


def _merged(settings: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others in their places, at any depth."""
    found = dict(settings)
    for name, value in changed.items():
        is_deeper = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = _merged(found[name], value) if is_deeper else value
    return found


def assert_each_once(bank: Branch) -> None:
    """Every transaction of the source is in the log at most once: doubled ones would fold to the same rows."""
    layout = wiring.sealed_layout(load(bank.config_path))
    if not layout.exists():
        return
    counts: Counter[tuple[str, int]] = Counter()
    for headers in reader.read_transactions(layout):
        found = headers.select(["kind", "position", "xid"]).to_pylist()
        counts.update((one["position"], one["xid"]) for one in found if one["xid"])
    doubled = [key for key, count in counts.items() if count > 1]
    assert not doubled, f"{len(doubled)} transactions are in the log twice, such as {doubled[:3]}"


def check_takeovers(pair: Pair, faults: list[str], seed: int) -> None:
    """Let these faults happen, one after another, while the bank is written to; nothing is lost, doubled or
    reordered."""
    pair.bank.start_writing(seed)
    for fault in faults:
        pair.take_over(fault)
    pair.finish()


def check_handover(pair: Pair) -> None:
    """`cdcflow handover` reports success if the other daemon has become active, and only then."""
    pair.bank.start_writing(seed=6)
    first = pair.active()
    second = pair.other(first)
    done = run_handover(first)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["handed_over"]
    assert pair.active() is second
    first.end()
    started = second.count(STARTED)
    done = run_handover(second)
    assert done.returncode == FINDINGS, done.stdout + done.stderr
    assert not json.loads(done.stdout)["handed_over"]
    wait_until(lambda: second.count(STARTED) > started, "the same daemon to capture again", more=pair.text)
    pair.finish()


def run_handover(member: Member) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdcflow", "handover", "--json", "--config", str(member.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def random_faults(count: int, seed: int) -> list[str]:
    return random.Random(seed).choices(FAULTS, k=count)
