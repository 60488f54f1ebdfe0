"""The description of a current-state table, which it carries in a property, and the columns that it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdcflow.errors import ConfigurationError

TARGET_VERSION = 2
MEMBERS_VERSION = 3
"""The version of descriptions with members. An older cdcflow refuses it: it would change the rows of all members."""


def check_version(found: int, latest: int, what: str) -> None:
    """Check that this cdcflow knows the version of a property of a table. `what` names the property's content in the
    error.

    Raises:
        ConfigurationError: a newer cdcflow wrote it.
    """
    if found > latest:
        raise ConfigurationError(
            f"the table was written by a newer cdcflow (version {found} of its {what})",
            remedy="merge with that cdcflow or a newer one",
            runbook="newer-format",
        )


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a current-state table. `type` is Spark's text for it.

    `number` is the source's, from 1. It is below zero if the source's table has no such column and never will: the
    table was recreated without it, or has no key and dropped the column. `id` is the table format's; `None`: the column
    is identified by its name, which has not been changed since. `added`: it is announced, and may exist already,
    perhaps without its default. `was`: in an open description, its name before the evolution began ("": the same).
    """

    name: str
    number: int
    type: str
    id: int | None = None
    added: bool = False
    was: str = ""


@dataclass(frozen=True, slots=True)
class FormatColumn:
    """A column as the table format shows it. `type` is Spark's text for it, `None` for a type with parts (a list)."""

    name: str
    id: int
    type: str | None


@dataclass(frozen=True, slots=True)
class TargetMember:
    """One of several captured tables whose rows a table has. `target`: the description that the table would have if it
    had the rows of this member alone, without the columns of `key`. `key`: the columns, with their values, that tell
    these rows from the others. `source` and `begun`: the values of such a table's properties."""

    target: Target
    source: str
    begun: int
    key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The description of a current-state table, without `_offset` and `_missing`. It is stored in a property of the
    table.

    `is_open`: an evolution was begun and not ended. `emptied_at`: the table's position (a cut) when its source table
    was found to be a different one; while the table is at that cut, rows of the old one may still be in it. `dropped`:
    the numbers of columns that the latest merged shape does not have. `others`: columns of the table that are not
    cdcflow's; they are not stored. `members`: if the table has the rows of several captured tables, these tables, keyed
    by name; then `columns` are those of all of them, and each member follows its own source.
    """

    incarnation: int
    key: tuple[str, ...]
    columns: tuple[TargetColumn, ...]
    is_open: bool = False
    emptied_at: int | None = None
    others: tuple[str, ...] = ()
    version: int = TARGET_VERSION
    dropped: tuple[int, ...] = ()
    members: Mapping[str, TargetMember] = field(default_factory=dict)

    @property
    def left_names(self) -> tuple[str, ...]:
        """The names of the columns that the source no longer has."""
        return tuple(c.name for c in self.columns if c.number <= 0 or c.number in self.dropped)

    def to_json(self) -> str:
        members = {
            name: {"target": one.target.to_json(), "source": one.source, "begun": one.begun, "key": dict(one.key)}
            for name, one in self.members.items()
        }
        return json.dumps(
            {
                "version": MEMBERS_VERSION if members else TARGET_VERSION,
                "incarnation": self.incarnation,
                "key": self.key,
                "columns": [[c.name, c.number, c.type, c.id] for c in self.columns if not c.added],
                "adding": [[c.name, c.number, c.type, c.id] for c in self.columns if c.added],
                "open": self.is_open,
                "emptied_at": self.emptied_at,
                **({"dropped": self.dropped} if self.dropped else {}),
                **({"members": members} if members else {}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Target:
        """Read a description that `to_json` wrote, or an older cdcflow (version 1: no ids, never open).

        Raises:
            ConfigurationError: a newer cdcflow wrote it.
        """
        value = json.loads(text)
        check_version(value["version"], MEMBERS_VERSION, "description")
        members = {
            name: TargetMember(cls.from_json(one["target"]), one["source"], one["begun"], one["key"])
            for name, one in value.get("members", {}).items()
        }
        columns = [TargetColumn(*column) for column in value["columns"]]
        columns += [replace(TargetColumn(*column), added=True) for column in value.get("adding", ())]
        return cls(
            value["incarnation"],
            tuple(value["key"]),
            tuple(columns),
            value.get("open", False),
            value.get("emptied_at"),
            version=value["version"],
            dropped=tuple(value.get("dropped", ())),
            members=members,
        )

    @property
    def key_positions(self) -> tuple[int, ...]:
        """The positions of the key's columns; of all columns in a table without a key."""
        names = self.key or tuple(c.name for c in self.columns)
        at = {c.name: i for i, c in enumerate(self.columns)}
        return tuple(at[n] for n in names)

    def as_described(self) -> Target:
        """Return the description with the names from before the evolution that is open."""
        was = {c.name: c.was or c.name for c in self.columns}
        columns = tuple(replace(c, name=was[c.name], was="") for c in self.columns)
        return replace(self, key=tuple(was[name] for name in self.key), columns=columns)
