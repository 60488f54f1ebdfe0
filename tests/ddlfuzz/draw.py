"""Cases: drawn from a seed, written as text, read back. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.ddlfuzz import alter_clauses, clauses, columns, keys, rows, servers, tables
from tests.ddlfuzz.kinds import DAEMON, KINDS, Kind, Step, acted
from tests.ddlfuzz.model import Model, Server, is_hidden

FAMILIES = (alter_clauses, clauses, columns, keys, rows, servers, tables)  # importing them registers their kinds
CASES = Path(__file__).parent / "cases"
SETTINGS = {"look": "8", "windows": "large", "chunk": "40", "memory": "large"}
"""`look`: seconds between two polls of the list of tables. `windows`: small ones catch up a few rows at a time.
`chunk`: rows a chunk of the backfill has at most. `memory`: with a small one, PostgreSQL sends a transaction of some
hundred rows before its commit."""
LENGTHS = (10, 16, 24)
TRIES = 20
MANY = ("150", "400")
"""Rows of an insert into a table whose columns the same transaction changed: more than a small memory holds."""
CHANGES = ("insert", "update", "delete")
ENDINGS = (
    "drop_table",
    "drop_table",
    "recreate_table",
    "replace_table",
    "rename_table",
    "swap_tables",
    "truncate",
    "drop_database",
    "drop_schema",
    "online_change",
)
"""Of tables that end while no daemon runs, or one lags: some changes, and then the end."""


ADDING = ("add_null", "add_constant", "readd_column")
COLUMNS = tuple(k.name for k in KINDS.values() if k.act.__module__ == columns.__name__)


@dataclass(frozen=True)
class Planned:
    """A later step: one of these kinds, of this table only, or of any if it is "". `is_large`: an insert of many
    rows."""

    among: tuple[str, ...]
    table: str = ""
    is_large: bool = False

    def draw(self, found: Kind, model: Model, dice: random.Random) -> tuple[str, ...] | None:
        """Arguments of a kind."""
        for _ in range(TRIES if self.table else 1):
            drawn = found.draw(model, dice)
            arguments = None if drawn is None else tuple(map(str, drawn))
            if arguments is not None and self.table in ("", *arguments[:1]):
                return (*arguments[:2], dice.choice(MANY), arguments[3]) if self.is_large else arguments
        return None


@dataclass(frozen=True)
class Case:
    """Steps on a fresh database, and the settings of its daemon. `open`: what is not fixed yet, or ""."""

    server: Server
    steps: tuple[Step, ...]
    settings: dict[str, str] = field(default_factory=dict)
    title: str = ""
    open: str = ""

    def with_steps(self, steps: Sequence[Step]) -> Case:
        return replace(self, steps=tuple(steps))

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(s.name for s in self.steps)

    def text(self) -> str:
        lines = [f"# {line}" for line in self.title.splitlines()]
        lines += [f"open {self.open}"] if self.open else []
        lines += [f"set {k} {v}" for k, v in self.settings.items() if SETTINGS[k] != v]
        return "\n".join([*lines, *map(str, self.steps)]) + "\n"

    @classmethod
    def parse(cls, server: Server, text: str) -> Case:
        lines = [line.strip() for line in text.strip().splitlines()]
        title = "\n".join(line[2:] for line in lines if line.startswith("#"))
        found = next((line[5:] for line in lines if line.startswith("open ")), "")
        settings = dict(line.split()[1:] for line in lines if line.startswith("set "))
        steps = [Step.parse(line) for line in lines if not line.startswith(("#", "open ", "set "))]
        return cls(server, tuple(steps), settings, title, found)


def committed(server: Server) -> list[Case]:
    """The cases that were found once, shrunk, in `cases/`: blocks with an empty line between."""
    blocks = (CASES / f"{server}.txt").read_text().split("\n\n")
    return [Case.parse(server, block) for block in blocks if block.strip()]


def drawn(server: Server, seed: int, kinds: Collection[str] | None = None) -> Case:
    """The case of a seed. `kinds`: only these are drawn (None: all)."""
    dice = random.Random(f"{server} {seed}")
    chosen = [k for k in KINDS.values() if server in k.servers and (kinds is None or k.name in kinds)]
    settings = {
        "look": dice.choice(("8", "0.2")),
        "windows": dice.choice(("large", "small")) if server == "postgres" else "large",
        "chunk": dice.choice(("15", "40", "200")),
        "memory": dice.choice(("large", "small")) if server == "postgres" else "large",
    }
    model = before = at_savepoint = Model(server)
    steps: list[Step] = []
    for step in _beginning(model, dice, kinds):
        found = acted(model, step)
        model, _ = found or (model, None)
        steps.append(step)
    # The daemon begins before the steps, in mid-way, or reads everything before the first of them.
    steps += dice.choice(([], [Step("start")], [Step("start"), Step("wait")], [Step("start"), Step("wait")]))
    left = dice.choice(LENGTHS)
    ahead: list[Planned] = []
    while left:
        if not ahead and dice.random() < 0.16:
            steps.append(Step(dice.choices(DAEMON, (5, 3, 2, 6))[0]))
            if steps[-1].name in ("stop", "kill") and dice.random() < 0.4:
                ahead = [Planned(CHANGES), Planned(ENDINGS)]
            continue
        if not ahead and model.is_postgres and kinds is None and dice.random() < 0.15:
            ahead = _migration(model, dice)
        planned = ahead.pop(0) if ahead else Planned(tuple(k.name for k in chosen))
        if planned.among[0] in DAEMON:
            steps.append(Step(planned.among[0]))
            continue
        of_these = [k for k in chosen if k.name in planned.among] or chosen
        found_kind = dice.choices(of_these, [k.weight for k in of_these])[0]
        arguments = planned.draw(found_kind, model, dice)
        if arguments is None:
            continue
        step = Step(found_kind.name, arguments)
        after = acted(model, step)
        if after is None:
            continue
        if step.name == "begin":
            before = model
        model = before if step.name == "rollback" and model.is_postgres else after[0]
        if step.name == "savepoint":
            at_savepoint = model
        if step.name == "undo":
            model = at_savepoint
        if step.name == "detach_part" and not ahead and dice.random() < 0.6:
            ahead = [Planned(CHANGES), Planned(("attach_part",))]
        steps.append(step)
        left -= 1
    return Case(server, tuple(steps), settings, f"seed {seed}")


def _migration(model: Model, dice: random.Random) -> list[Planned]:
    """A transaction that changes a table's columns, and many of its rows."""
    table = dice.choice(list(model.tables)) if model.tables else ""
    altering = [Planned(ADDING, table), *dice.choice(([], [], [Planned(COLUMNS, table)]))]
    filling = [Planned(("insert",), table, is_large=True), Planned(("update",), table)]
    dice.shuffle(filling)
    if dice.random() < 0.4:
        undone = [Planned(("savepoint",)), Planned(ADDING, table), filling[0], Planned(("linger",)), Planned(("undo",))]
        filling = dice.choice(([*undone, *filling], [*filling, *undone[:1], *undone[2:]]))
    before = dice.choice(([], [Planned(("wait",))]))
    ending = dice.choices(("commit", "hold", "rollback"), (4, 4, 1))[0]
    ends = [Planned(("linger",)), Planned((ending,))]
    if ending == "hold":
        ends += [
            Planned(dice.choice((CHANGES, COLUMNS, ("stop",), ("kill",)))) for _ in range(dice.choice((0, 0, 1, 2)))
        ]
        ends += [*dice.choice(([], [], [Planned(("start",))])), Planned(("release",))]
    return [*before, Planned(("begin",)), *altering, *filling, *ends]


def _beginning(model: Model, dice: random.Random, kinds: Collection[str] | None) -> Iterator[Step]:
    home = "public." if model.is_postgres else ""
    # Names that are not ASCII are other bytes in each character set of a client.
    names = [
        f"{home}t{n}" if model.is_postgres or dice.random() < 0.6 else f"té{n}" for n in range(dice.choice((2, 3)))
    ]
    for name in names:
        yield Step("create_table", (name,))
        yield Step("insert", (name, "1", str(dice.choice((3, 60, 300))), str(dice.randint(1, 999))))
    if (kinds is None or "create_parted" in kinds) and dice.random() < 0.3:
        yield Step("create_parted", (f"{home}p0",))
        yield Step("insert", (f"{home}p0", "880", "250", str(dice.randint(1, 999))))


__all__ = ["CASES", "SETTINGS", "Case", "committed", "drawn", "is_hidden"]
