"""Who takes part in the merge's benches: sessions that stay warm, asked in turn.

Every party has a session that stays warm, all on the same log, once for each table format. A second checkout may run
next to this one (`CDCFLOW_BENCH_TREE`), in Delta: older ones have nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Failed, tell
from bench.mergelog import SealedLog
from bench.results import Line, compared
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import list_segments

SMALL_TABLES = 5

Asked = Callable[[], dict[str, Any]]

FORMATS = os.environ.get("CDCFLOW_BENCH_FORMATS", "delta iceberg").split()

CHANGES = 1000
"""Changes of each small table in a cycle."""


class Party:
    """A warm session of a checkout; see `bench.children.merging`."""

    def __init__(
        self,
        name: str,
        sources: Path | None,
        scratch: Path,
        table_format: str,
        engine: str = "spark",
        module: str = "merging",
        **more: object,
    ) -> None:
        """`sources`: where it takes its modules from (None: where this process does). `more`: of its session."""
        self.name = name
        scratch.mkdir(parents=True, exist_ok=True)
        environment = os.environ | ({} if sources is None else {"PYTHONPATH": str(sources)})
        self._said = (scratch / "stderr").open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"bench.children.{module}",
                json.dumps({"scratch": str(scratch), "format": table_format, "engine": engine, **more}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=environment,
        )
        self.pid = self._process.pid

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Run this; returns its seconds, CPU seconds and Spark jobs, and its result.

        Raises:
            Failed: the session ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} ended: {Path(self._said.name).read_text()[-3000:]}")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


@contextmanager
def parties(table_format: str) -> Iterator[tuple[Party, Party | None, Party]]:
    """This checkout, the other one, and this one without Spark."""
    tree = os.environ.get("CDCFLOW_BENCH_TREE") if table_format == "delta" else None
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = Party("this checkout", None, scratch / "here", table_format)
        stack.callback(ours.close)
        before = None
        if tree:
            before = Party("the other checkout", Path(tree).resolve() / "src", scratch / "there", table_format)
            stack.callback(before.close)
        local = Party("this checkout without Spark", None, scratch / "local", table_format, "local")
        stack.callback(local.close)
        yield ours, before, local


def in_turn(number: int, **asked: Asked) -> dict[str, dict[str, Any]]:
    """Each party once, a different one first each time."""
    names = list(asked)
    turn = number % len(names)
    found = {}
    for name in names[turn:] + names[:turn]:
        found[name] = asked[name]()
        tell(
            f"    {name}: {found[name]['seconds']:.2f} s, {found[name]['cpu_s']:.1f} CPU s, {found[name]['jobs']} jobs"
        )
    return found


def ratio(
    case: str,
    unit: str,
    ours: list[dict[str, Any]],
    theirs: list[dict[str, Any]],
    peer: str,
    target: Any = None,
    rows: int | None = None,
) -> Line:
    def figure(found: dict[str, Any]) -> float:
        if rows is not None:
            return rows / float(found["seconds"])
        return float(found["cpu_s" if unit == "CPU s" else "seconds"])

    return compared("merge", case, unit, [figure(c) for c in ours], [figure(c) for c in theirs], peer, target)


def files_of(log: SealedLog) -> list[str]:
    layout = Layout(log.root)
    found = []
    for segment in list_segments(layout):
        room = layout.segment(segment.first_offset, segment.last_offset)
        found += [str(room / f.path) for f in segment.files]
    return found
