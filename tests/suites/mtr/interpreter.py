"""Runs a parsed test against a server, for the changes that it makes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suites.mtr.script import Block, Command, Node, NotReadable, Sql, parsed
from tests.suites.mtr.sessions import Sessions
from tests.suites.mtr.variables import filled, holds, value_of

ROUNDS_MAX = 2_000
"""More rounds of one loop than this are cut off: the suites fill tables by loops of ten thousands."""
DEPTH_MAX = 30
ENDS = frozenset(("exec", "execw", "exec_in_background", "system", "shutdown_server", "send_shutdown", "perl"))
"""Commands that need a program of the suite, or end the server."""
_READS = re.compile(r"\s*(?:SELECT|SHOW)\b(?!.*\b(?:INTO|:=))", re.IGNORECASE | re.DOTALL)
_NOT_NEEDED = re.compile(r"include/(?:have_debug\w*|big_test|no_valgrind\w*|not_valgrind\w*|not_embedded)\.inc$")
"""Files that a test includes so as to be skipped where it would take long, or give other results."""
_RESTARTS = re.compile(r"include/(?:\w*restart\w*|wait_until_disconnected|\w*shutdown_mysqld|kill_\w*mysqld)\.inc$")
"""Files that wait until the test has restarted the server."""


class Ended(Exception):
    """The test ends here; the text is the reason."""


@dataclass
class Limits:
    seconds: float = 60.0
    statements: int = 20_000


@dataclass
class Ran:
    """The outcome of a test."""

    counts: Counter[str] = field(default_factory=Counter)
    ended: str = ""


class Interpreter:
    """One run of one test file.

    `roots` are the folders in which `source` searches. `is_refused` names statements that would change the server for
    the tests after this one, or that no capture can follow; `before` sees each statement just before it is sent.
    """

    def __init__(
        self,
        sessions: Sessions,
        roots: Sequence[Path],
        *,
        is_refused: Callable[[str], bool],
        before: Callable[[str], None] = lambda _: None,
        variables: dict[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._sessions = sessions
        self._roots = roots
        self._is_refused = is_refused
        self._before = before
        self._variables = {"CURRENT_CONNECTION": "default"} | (variables or {})
        self._limits = limits or Limits()
        self._is_skipping = False
        self._including: list[Path] = []
        self._until = 0.0
        self.ran = Ran()

    def run(self, file: Path) -> Ran:
        self._until = time.monotonic() + self._limits.seconds
        try:
            self._file(file, depth=0)
        except Ended as end:
            self.ran.ended = str(end)
        except (NotReadable, RecursionError) as error:
            self.ran.ended = f"not readable: {error}"
        return self.ran

    def _nodes(self, nodes: Sequence[Node], depth: int) -> None:
        for node in nodes:
            if time.monotonic() > self._until or self.ran.counts.total() > self._limits.statements:
                raise Ended("long enough")
            match node:
                case _ if self._is_skipping and not (isinstance(node, Command) and node.name == "enable_parsing"):
                    pass
                case Sql(text):
                    self._sql(text)
                case Command():
                    self._command(node, depth)
                case Block():
                    self._block(node, depth)

    def _block(self, block: Block, depth: int) -> None:
        for _ in range(ROUNDS_MAX if block.kind == "while" else 1):
            if not holds(block.condition, self._variables, self._ask):
                return
            self._nodes(block.body, depth)

    def _sql(self, text: str) -> None:
        if self._is_refused(text):
            self.ran.counts["passed over"] += 1
            return
        self._before(text)
        self.ran.counts["run" if self._sessions.now.execute(text) else "refused"] += 1

    def _command(self, command: Command, depth: int) -> None:
        name, rest = command.name, command.rest
        match name:
            case "let":
                target, _, value = rest.partition("=")
                self._variables[target.strip().lstrip("$")] = value_of(value, self._variables, self._ask)
            case "inc" | "dec":
                target = rest.lstrip("$").strip()
                number = re.match(r"\s*-?\d+", self._variables.get(target, "0"))
                self._variables[target] = str((int(number[0]) if number else 0) + (1 if name == "inc" else -1))
            case "eval" | "evalp" | "query" | "query_vertical" | "query_horizontal":
                self._sql(filled(rest, self._variables) if name != "query" else rest)
            case "send" | "send_eval":
                text = filled(rest, self._variables) if name == "send_eval" else rest
                if text and not self._is_refused(text):
                    self._before(text)
                    self._sessions.now.send(text)
                    self.ran.counts["sent"] += 1
            case "reap":
                self._sessions.now.reap()
            case "source":
                self._source(filled(rest, self._variables).partition("#")[0].strip(), depth)
            case "connect":
                self._connect(filled(rest, self._variables))
            case "connection":
                self._sessions.switch(filled(rest, self._variables))
                self._variables["CURRENT_CONNECTION"] = self._sessions.name
            case "disconnect" | "dirty_close" | "send_quit":
                self._sessions.close(filled(rest, self._variables))
                self._variables["CURRENT_CONNECTION"] = self._sessions.name
            case "disable_parsing" | "enable_parsing":
                self._is_skipping = name == "disable_parsing"
            case "sleep" | "real_sleep":
                time.sleep(0.02)
            case "skip" | "exit" | "die":
                raise Ended(f"{name} {rest}"[:100])
            case _ if name in ENDS:
                raise Ended(f"it needs {name}")

    def _source(self, name: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise Ended("includes that include one another")
        if _RESTARTS.search(name):
            raise Ended(f"it needs {name}")
        if _NOT_NEEDED.search(name):
            return
        for root in (*self._roots, self._including[-1].parent):
            if (file := root / name).is_file():
                self._file(file, depth + 1)
                return
        raise Ended(f"there is no file {name}")

    def _file(self, file: Path, depth: int) -> None:
        self._including.append(file)
        self._nodes(parsed(file.read_text(encoding="latin1")), depth)
        self._including.pop()

    def _connect(self, text: str) -> None:
        inner = text.strip().removeprefix("(").removesuffix(")")
        parts = [part.strip().strip("'\"") for part in inner.split(",")] + [""] * 5
        name, _, user, password, database = parts[:5]
        self._sessions.connect(name, user, password, "" if database.startswith("*") else database)
        self._variables["CURRENT_CONNECTION"] = self._sessions.name

    def _ask(self, query: str, column: str | None, row: int) -> str:
        if self._is_refused(query) and not _READS.match(query):
            return ""
        self._before(query)
        names, rows = self._sessions.now.rows(query)
        if len(rows) < row:
            return "" if column is None else "No such row"
        if column is None:
            return "\t".join(value or "" for value in rows[row - 1]) if names else ""
        wanted = [number for number, name in enumerate(names) if name.lower() == column.lower()]
        return (rows[row - 1][wanted[0]] or "NULL") if wanted else ""


__all__ = ["Ended", "Interpreter", "Limits", "Ran"]
