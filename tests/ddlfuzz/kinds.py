"""Kinds of steps: how one is drawn for a model, and its effect on model and database."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.ddlfuzz.model import SERVERS, Model, Server

Act = Callable[..., list[str] | None]
"""(model, *arguments) → the statements, the model changed as they will change the database; `None`: not possible."""
Draw = Callable[[Model, random.Random], tuple[object, ...] | None]
"""(model, dice) → arguments, or None where the model offers nothing."""

DAEMON = ("start", "stop", "kill", "wait")
"""Steps that are not the database's: start the daemon, stop it, kill it, wait until it has everything."""
COMPARE = "compare"
"""Wait, and compare: for what is right again at the end. It is not drawn, because between two polls of the list of
tables much may be unknown."""


@dataclass(frozen=True)
class Kind:
    name: str
    weight: int
    servers: tuple[Server, ...]
    draw: Draw
    act: Act


KINDS: dict[str, Kind] = {}


def kind(draw: Draw, *servers: Server, weight: int = 2) -> Callable[[Act], Act]:
    """Register a kind under its function's name; no servers named: on all of them."""

    def register(act: Act) -> Act:
        KINDS[act.__name__] = Kind(act.__name__, weight, servers or SERVERS, draw, act)
        return act

    return register


@dataclass(frozen=True)
class Step:
    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *self.arguments))

    @classmethod
    def parse(cls, line: str) -> Step:
        name, *arguments = line.split()
        return cls(name, tuple(arguments))


def acted(model: Model, step: Step) -> tuple[Model, list[str]] | None:
    """The model after a step and its statements; None: the step means nothing in this model."""
    found = KINDS[step.name]
    if model.server not in found.servers:
        return None
    after = model.copy()
    try:
        statements = found.act(after, *step.arguments)
    except KeyError:  # a missing table or column
        return None
    return None if statements is None else (after, statements)


# ── drawing arguments ───────────────────────────────────────────────────────────────────────────────────────────


def one_table(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    return (dice.choice(list(model.tables)),) if model.tables else None


def one_plain_table(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    names = model.plain()
    return (dice.choice(names),) if names else None


def one_column(*types: str) -> Draw:
    """A table and a column of it that statements set, of these types."""

    def draw(model: Model, dice: random.Random) -> tuple[object, ...] | None:
        found = [(t, c) for t, table in model.tables.items() for c in table.given(*types)]
        return dice.choice(found) if found else None

    return draw


def nothing(model: Model, dice: random.Random) -> tuple[object, ...]:
    return ()


def fresh_name(model: Model, dice: random.Random) -> str:
    """A column name; often one that was used before."""
    return f"c{dice.randint(1, 6)}"


__all__ = [
    "COMPARE",
    "DAEMON",
    "KINDS",
    "Draw",
    "Kind",
    "Step",
    "acted",
    "fresh_name",
    "kind",
    "nothing",
    "one_column",
    "one_plain_table",
    "one_table",
]
