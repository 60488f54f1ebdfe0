"""Resolves the numbers that a log gives to tables: which shape a number means, message by message. Pure.

    log   table 7 = a ──rows of 7──rows of 7──table 7 = b ──rows of 7──▶      the last rows have the shape b

A log names a table once, and its rows by a number. A decoder reads many messages together, so a number may have several
meanings in one part of the log.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s

M = TypeVar("M")


class NumberedTables(Generic[M]):
    """The meanings of table numbers in one part of the log, whose messages are numbered from 0.

    `known`: the meanings before the part. `define` updates it, so after the last definition it has the meanings after
    the part.
    """

    def __init__(self, known: dict[int, M]) -> None:
        self.known = known
        self.since: dict[int, list[tuple[int, M]]] = {}
        """For each number defined in this part: its meanings, each with the message that defined it (-1: known before
        the part)."""

    def define(self, number: int, message: int, meaning: M) -> None:
        """Give a number this meaning, starting with this message."""
        before = [(-1, self.known[number])] if number in self.known else []
        self.since.setdefault(number, before).append((message, meaning))
        self.known[number] = meaning

    def forget(self) -> None:
        """Forget what all numbers mean after this part. In this part, a number keeps its meaning until its next
        definition."""
        for number, meaning in self.known.items():
            self.since.setdefault(number, [(-1, meaning)])
        self.known.clear()

    def meanings(self, number: int) -> list[tuple[int, M]]:
        """Return all meanings of a number in this part, each with the message since which it applies (-1: since before
        it)."""
        return self.since.get(number) or ([(-1, self.known[number])] if number in self.known else [])

    def split(self, number: int, messages: Int64s) -> list[tuple[M, Int64s]]:
        """Return messages about a table (by their numbers, ascending), grouped by the meaning that the table's number
        has in them.

        Raises:
            InvariantViolated: the number has no meaning yet in the first of these messages.
        """
        found = self.meanings(number)
        bounds = np.searchsorted(messages, [since for since, _ in found]).tolist()
        if not found or bounds[0] > 0:
            raise InvariantViolated(
                f"the log has rows of table number {number}, which the server has not described before them",
                runbook="stream-not-understood",
            )
        ends = [*bounds[1:], len(messages)]
        return [(meaning, messages[a:b]) for (_, meaning), a, b in zip(found, bounds, ends, strict=True) if b > a]

    def meaning_at(self, number: int, message: int) -> M:
        """Return the meaning of a number in one message. Raises InvariantViolated as `split` does."""
        return self.split(number, np.array([message]))[0][0]
