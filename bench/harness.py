"""Processes, clocks and rounds: what every bench measures with.

The machines that run this are noisy, so nothing is reported alone. Each party (a limit, cdcflow, a peer) is a separate
process; in every round each runs once, and the order rotates by one from round to round, so that no party is always
first on cold caches or last on a warm server. The first round warms up and is not counted.

CPU seconds are the kernel's own account: of the party by `wait4` or by itself, of the server as the sum over the
postmaster, its running children, and those that have ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

CHILD_SECONDS_MAX = 1800.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A party failed, or its output differs from the source: no number is printed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The resources that one party needed in one round. Unknown figures are None."""

    seconds: float
    rows: int
    cpu_s: float
    server_cpu_s: float = 0.0
    rss_bytes: int | None = None
    written_bytes: int | None = None
    fsyncs: int | None = None
    found: Mapping[str, object] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s / self.rows * 1e6

    @property
    def server_cpu_s_per_million(self) -> float:
        return self.server_cpu_s / self.rows * 1e6


Party = Callable[[], Outcome]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a run may take: `rows` scales every backlog, `rounds` are measured after one that warms up."""

    rows: int
    rounds: int = 3
    quick: bool = False


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────


class Child:
    """A process of a party. It prints its figures, if any, as JSON in the last line of its output.

    `tree`: the checkout that the next child of `bench.children` is of, with its cdcflow; None: this process's.
    """

    tree: ClassVar[Path | None] = None

    def __init__(self, command: Sequence[str | Path], *, to_nowhere: bool = False) -> None:
        self.command = [str(part) for part in command]
        self.begun = time.perf_counter()
        self.begun_ns = time.monotonic_ns()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if to_nowhere else subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            text=True,
        )
        self.pid = self._process.pid

    @classmethod
    def of(cls, module: str, asked: Mapping[str, object]) -> Child:
        """A child of `bench.children`."""
        elsewhere = [] if cls.tree is None else ["env", f"--chdir={cls.tree}", f"PYTHONPATH={cls.tree / 'src'}"]
        return cls([*elsewhere, sys.executable, "-m", f"bench.children.{module}", json.dumps(asked)])

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def line(self) -> dict[str, object]:
        """The next line that it prints, as an object.

        Raises:
            Failed: it ended instead.
        """
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            self.outcome()
            raise Failed(f"{' '.join(self.command)[:300]} ended without any output")
        found = json.loads(said)
        assert isinstance(found, dict)
        return found

    def said(self) -> str:
        """Wait for its end: everything that it said.

        Raises:
            Failed: it did not end well.
        """
        said, complaint = self._process.communicate(timeout=CHILD_SECONDS_MAX)
        if self._process.returncode != 0:
            raise Failed(f"{' '.join(self.command)[:300]} ended with {self._process.returncode}: {complaint[-2000:]}")
        return said

    def peak_rss_bytes(self) -> int:
        """The most memory that was resident at once up to now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
        return 0

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: it gets no chance to shut down in order."""
        self._process.kill()
        self._process.communicate()

    def outcome(self, rows: int | None = None, within_s: float = CHILD_SECONDS_MAX) -> Outcome:
        """Wait for its end. `rows`: how many it is known to have moved, where it does not tell.

        Raises:
            Failed: it did not end well.
        """
        before = _children_cpu_s()
        try:
            said, complaint = self._process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.command[0]} did not end in {within_s:g} s") from None
        seconds = time.perf_counter() - self.begun
        cpu = _children_cpu_s() - before
        if self._process.returncode != 0:
            raise Failed(f"{' '.join(self.command)[:300]} ended with {self._process.returncode}: {complaint[-2000:]}")
        found = json.loads(said.splitlines()[-1]) if said else {}
        return Outcome(
            seconds=found.pop("seconds", seconds),
            rows=found.pop("rows", rows or 0),
            cpu_s=found.pop("cpu_s", cpu),
            rss_bytes=found.pop("rss_bytes", None),
            written_bytes=found.pop("written_bytes", None),
            fsyncs=found.pop("fsyncs", None),
            found=found,
        )


def together(children: Sequence[Child], rows: int) -> Outcome:
    """Several processes as one party: the time of the last, the CPU of all."""
    outcomes = [child.outcome(rows) for child in children]
    return replace(
        outcomes[0], seconds=time.perf_counter() - children[0].begun, cpu_s=sum(o.cpu_s for o in outcomes), rows=rows
    )


def _children_cpu_s() -> float:
    """CPU of this process's children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def server_cpu_s(postmaster: int) -> float:
    """CPU seconds that a PostgreSQL server has used up to now, in all processes it ever had."""
    living, before = 0, 0
    for _ in range(100):
        children, before = _children(postmaster), _ticks(postmaster, with_ended=True)
        try:
            living = sum(_ticks(child, with_ended=False) for child in children)
        except (FileNotFoundError, ProcessLookupError):
            continue
        # A process that ended in between would be in neither sum, or in both.
        if (children, before) == (_children(postmaster), _ticks(postmaster, with_ended=True)):
            break
    return (before + living) / _TICKS


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _ticks(pid: int, *, with_ended: bool) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(n) for n in fields[11 : 15 if with_ended else 13])


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────────────────


def rounds(
    parties: Mapping[str, Party], count: int, *, postmaster: int | None, fewer: Mapping[str, int] | None = None
) -> dict[str, list[Outcome]]:
    """Each party's outcomes over `count` rounds, after one that warms up.

    Those in `fewer` sit out the warm-up, because they warm up within each of their runs, and what exceeds their number.
    """
    measured: dict[str, list[Outcome]] = {name: [] for name in parties}
    names = list(parties)
    apart = fewer or {}
    for number in range(count + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if name in apart and not 1 <= number <= apart[name]:
                continue
            outcome = with_server_cost(parties[name], postmaster)
            told = f"    {name}: {outcome.seconds:.2f} s"
            if outcome.rows:
                told += f", {outcome.rate:,.0f} rows/s, CPU {outcome.cpu_s_per_million:.2f} s a million"
            tell(told + ("" if number else "   (warming up)"))
            if number:
                measured[name].append(outcome)
    return measured


def with_server_cost(party: Party, postmaster: int | None) -> Outcome:
    """Run a party once; the server's CPU in that time is part of the outcome, unless the party counted it itself."""
    if postmaster is None:
        return party()
    before = server_cpu_s(postmaster)
    outcome = party()
    if outcome.server_cpu_s:
        return outcome
    return replace(outcome, server_cpu_s=server_cpu_s(postmaster) - before)


def tell(text: str) -> None:
    """A line of progress for the user."""
    print(text, file=sys.stderr, flush=True)
