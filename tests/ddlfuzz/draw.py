"""Cases: drawn from a seed, written as text, read back. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.ddlfuzz import clauses, columns, keys, rows, servers, tables
from tests.ddlfuzz.kinds import DAEMON, KINDS, Step, acted
from tests.ddlfuzz.model import Model, Server, is_hidden

FAMILIES = (clauses, columns, keys, rows, servers, tables)  # importing them registers their kinds
CASES = Path(__file__).parent / "cases"
SETTINGS = {"look": "8", "windows": "large", "chunk": "40"}
"""`look`: seconds between two polls of the list of tables. `windows`: small ones catch up a few rows at a time.
`chunk`: rows a chunk of the backfill has at most."""
LENGTHS = (10, 16, 24)
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
    }
    model = Model(server)
    steps: list[Step] = []
    for step in _beginning(model, dice, kinds):
        found = acted(model, step)
        model, _ = found or (model, None)
        steps.append(step)
    # The daemon begins before the steps, in mid-way, or reads everything before the first of them.
    steps += dice.choice(([], [Step("start")], [Step("start"), Step("wait")], [Step("start"), Step("wait")]))
    left = dice.choice(LENGTHS)
    ahead: list[tuple[str, ...]] = []
    while left:
        if not ahead and dice.random() < 0.16:
            steps.append(Step(dice.choices(DAEMON, (5, 3, 2, 6))[0]))
            if steps[-1].name in ("stop", "kill") and dice.random() < 0.4:
                ahead = [CHANGES, ENDINGS]
            continue
        among = ahead.pop(0) if ahead else tuple(k.name for k in chosen)
        of_these = [k for k in chosen if k.name in among] or chosen
        found_kind = dice.choices(of_these, [k.weight for k in of_these])[0]
        arguments = found_kind.draw(model, dice)
        if arguments is None:
            continue
        step = Step(found_kind.name, tuple(map(str, arguments)))
        after = acted(model, step)
        if after is None:
            continue
        model = after[0]
        steps.append(step)
        left -= 1
    return Case(server, tuple(steps), settings, f"seed {seed}")


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
