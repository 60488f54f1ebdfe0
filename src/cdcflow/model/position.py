"""Positions, offsets and checkpoints: how far cdcflow is, in the source's log and in the change log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType, TypeVar

Offset = NewType("Offset", int)
"""The gapless 64-bit number of a row in the change log. The first row has offset 1."""

Epoch = NewType("Epoch", int)
"""One run of the capture process on one log: 1 for the first, incremented at every start."""

CHECKPOINT_VERSION = 1


_T = TypeVar("_T")


def check_kind(mine: object, other: object) -> None:
    """Check that two values may be compared.

    Raises:
        TypeError: the values are of different kinds.
    """
    if type(other) is not type(mine):
        raise TypeError(f"a {type(mine).__name__} is compared with a {type(other).__name__}")


def own_kind(cls: type[_T]) -> type[_T]:
    """Decorate a class so that its values compare with their own kind only.

    mypy refuses `==` between a position and an offset, a text or another kind's position. At run time such a comparison
    raises TypeError, because `False` would be taken to mean that a position is not reached.
    """
    equal = cls.__eq__

    def is_equal(self: object, other: Any) -> bool:  # Any: whatever it is compared with
        if isinstance(other, (int, str, bytes)) or hasattr(type(other), "_own_kind"):
            check_kind(self, other)
        return equal(self, other)

    cls.__eq__ = is_equal  # type: ignore[method-assign]
    cls._own_kind = True  # type: ignore[attr-defined]
    return cls


@own_kind
@dataclass(frozen=True, slots=True)
class Position:
    """A position in one source's log: a text that only that source's dialect can parse or order.

    Files, messages and JSON contain `text`.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@own_kind
@dataclass(frozen=True, slots=True)
class Token:
    """The identity of one watermark: a unique text. It begins with its epoch, so marks of an earlier run mean nothing.

    The source's log contains `text`.
    """

    text: str

    def __str__(self) -> str:
        return self.text


def position_text(position: Position | None) -> str | None:
    """Return the text of a position for a file or a message; None if there is no position yet."""
    return None if position is None else position.text


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which database cluster a log belongs to, so that one cluster's state is never used for another.

    `system_id` is the server's own identity (PostgreSQL system identifier, MySQL server uuid); `timeline` changes when
    a server was restored or promoted.
    """

    kind: str
    system_id: str
    database: str
    timeline: str = ""

    def is_source_of(self, known: SourceIdentity, *, renamed: bool = False, replaced: bool = False) -> bool:
        """Whether a log of `known` may be continued from this source; timelines are not compared.

        `renamed`: allow a different database name on the same server. `replaced`: allow a different server with a
        database of the same name.
        """
        same_server, same_name = self.system_id == known.system_id, self.database == known.database
        may_differ = (same_server and renamed) or (same_name and replaced)
        return self.kind == known.kind and ((same_server and same_name) or may_differ)

    def to_json(self) -> dict[str, str]:
        return {
            "kind": self.kind,
            "system_id": self.system_id,
            "database": self.database,
            "timeline": self.timeline,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> SourceIdentity:
        return cls(value["kind"], value["system_id"], value["database"], value.get("timeline", ""))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a restart needs, stored with a cut in the same fsync as the rows before it.

    `position` follows the last transaction in the log (None: the source was never read). `next_offset` and
    `next_transaction` are the numbers that the next row and the next transaction get; `cut` is the number of this cut
    (0: no cut yet). `commit_clock` is in microseconds since 1970 UTC: the log has every transaction up to that time,
    and all later transactions get a later clock. It is the last transaction's clock, or a later time that the source
    reported (a heartbeat). `progress` is the backfill progress as `cdcflow.capture.interleave.progress` writes it.
    `source` is what the source adapter stores for its next start (slot name, timeline, …).
    """

    position: Position | None = None
    next_offset: Offset = Offset(1)
    next_transaction: int = 1
    cut: int = 0
    commit_clock: int = 0
    epoch: Epoch = Epoch(0)
    progress: Mapping[str, object] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """This checkpoint as one line of JSON, with its version."""
        return json.dumps(
            {
                "version": CHECKPOINT_VERSION,
                "position": position_text(self.position),
                "next_offset": self.next_offset,
                "next_transaction": self.next_transaction,
                "cut": self.cut,
                "commit_clock": self.commit_clock,
                "epoch": self.epoch,
                "progress": self.progress,
                "source": dict(self.source),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read what `to_json` wrote. Raises ValueError if a newer cdcflow wrote it."""
        return cls.from_value(json.loads(text))

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint whose JSON was parsed already. Its `progress` and `source` are those of `value`."""
        if value["version"] > CHECKPOINT_VERSION:
            raise ValueError(f"checkpoint version {value['version']} is newer than {CHECKPOINT_VERSION}")
        return cls(
            position=None if value["position"] is None else Position(value["position"]),
            next_offset=Offset(value["next_offset"]),
            next_transaction=value["next_transaction"],
            cut=value["cut"],
            commit_clock=value["commit_clock"],
            epoch=Epoch(value["epoch"]),
            progress=value["progress"],
            source=value["source"],
        )
