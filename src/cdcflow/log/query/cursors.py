"""The position of a consumer in a log: its definition, its backfill out of the log, and cursors.

    log        ──────────────────────────▏B────────────────▶
    consumer   rows of each table as of B ▕ changes after B, in commit order
    cursor     table, place within it     ▕ offset

`B` is one offset for all tables. A place is how many rows of the table were returned (in a table that was not whole at
B: the offset of the last one), so the same place means the same rows for every reader. For users a cursor is an opaque
text; only this module interprets it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cdcflow.errors import ConfigurationError, InvariantViolated

STATE_VERSION = 1
OPS = "crudt"
"""The ops that a consumer may request: insert, read, update, delete, truncate."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Definition:
    """What a consumer gets. `tables` `None`: all, including tables that are captured later; `ops` `None`: all."""

    name: str
    tables: tuple[str, ...] | None = None
    ops: str | None = None

    def check(self) -> None:
        """Check the definition.

        Raises:
            ConfigurationError: the name is not valid, or there is no such op.
        """
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                "naming a consumer: a name has up to 64 letters, digits, - and _, and begins with a letter or digit",
                remedy="choose such a name: search-index",
            )
        if self.ops is not None and (not self.ops or set(self.ops) - set(OPS)):
            raise ConfigurationError(
                f"creating consumer {self.name}: its ops are some of {', '.join(OPS)}, and others were given",
                remedy="give them as one word, such as cud; without it the consumer gets all",
            )
        if self.tables == ():
            raise ConfigurationError(
                f"creating consumer {self.name}: no table is named", remedy="name one, or leave tables out: then all"
            )


@dataclass(frozen=True, slots=True)
class BackfillPart:
    """A table's part of a backfill. `since`: the first offset of the log that the part needs. `is_rows`: the table's
    rows as of the backfill's offset; otherwise its changes since `since`, because not all of its rows were in the log
    yet."""

    table: str
    since: int
    is_rows: bool


@dataclass(frozen=True, slots=True)
class LogBackfill:
    """A backfill out of the log: `offset` is the same for all tables, `clock` its commit time (µs since 1970)."""

    offset: int
    clock: int
    parts: tuple[BackfillPart, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position up to which everything was returned. If `part` is `None`, that is every change up to `offset`.
    Otherwise it is a position in a backfill as of `offset`: everything before this part, and of the part everything up
    to `place`."""

    log_id: str
    consumer: str
    generation: int
    offset: int
    part: int | None = None
    place: int = 0

    def __str__(self) -> str:
        fields = [STATE_VERSION, self.log_id, self.consumer, self.generation, self.offset, self.part, self.place]
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> Cursor:
        """Parse a cursor.

        Raises:
            ConfigurationError: the text is not a cursor.
        """
        try:
            fields = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
            version, log_id, consumer, generation, offset, part, place = fields
            found = cls(log_id, consumer, generation, offset, part, place)
            numbers = (generation, offset, place, *(() if part is None else (part,)))
            is_one = isinstance(log_id, str) and isinstance(consumer, str) and all(type(n) is int for n in numbers)
            if version != STATE_VERSION or not is_one or min(numbers) < 0:
                raise ValueError
        except (ValueError, TypeError, binascii.Error):
            raise ConfigurationError(
                "reading a cursor: the text is not a cursor, or only a part of one",
                remedy="give the whole text that came with a batch, a line or an event; without one the"
                " reader continues after the last commit",
            ) from None
        return found


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The stored state of a consumer. `last_commit`: the cursor up to which its reader reported everything as
    processed; `committed`: a cursor at or after it, with nothing for the consumer between the two."""

    definition: Definition
    log_id: str
    generation: int
    backfill: LogBackfill | None
    committed: Cursor
    last_commit: Cursor

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_in_backfill(self) -> bool:
        return self.committed.part is not None

    @property
    def needed_from(self) -> int:
        """The log's first offset that the consumer still needs; until a backfill is done, the first one that the
        backfill needs."""
        if self.backfill is not None and self.is_in_backfill:
            behind = self.backfill.offset + 1
            return min((part.since for part in self.backfill.parts[self.committed.part :]), default=behind)
        return self.committed.offset + 1

    def has_lost(self, begins: int, *, has_state: bool) -> bool:
        """Return whether the consumer needs something that has expired from a log that begins at offset `begins`.
        `has_state`: the log has a state of its tables just before that offset."""
        if self.backfill is None or self.committed.part is None:
            return self.needed_from < begins
        rest = self.backfill.parts[self.committed.part :]
        lacks = any(part.since < begins and not (part.is_rows and has_state) for part in rest)
        return lacks or self.backfill.offset + 1 < begins

    def behind(self, end: int) -> int:
        """Return how many of the log's offsets up to `end` are after the last commit."""
        return max(0, end - self.committed.offset)

    def begin_again(self, generation: int, backfill: LogBackfill | None, offset: int) -> ConsumerState:
        """Return the state of the consumer if it begins again: with a backfill, or without one (`None`) after an
        offset."""
        part = 0 if backfill is not None and backfill.parts else None
        at = offset if backfill is None else backfill.offset
        committed = Cursor(self.log_id, self.name, generation, at, part)
        return replace(self, generation=generation, backfill=backfill, committed=committed, last_commit=committed)

    def after_commit(self, cursor: Cursor) -> ConsumerState:
        """Return the state of the consumer after its reader reported that everything up to a cursor was processed."""
        return replace(self, committed=cursor, last_commit=cursor)

    def check_cursor(self, cursor: Cursor, attempted: str) -> Cursor:
        """Return a cursor of this consumer, after checking that the consumer can resume from it or commit it. From
        `last_commit` to `committed` all positions are equivalent, and the latter is returned for them.

        Raises:
            ConfigurationError: it belongs to another consumer or log, or to an earlier backfill.
        """
        if cursor.log_id != self.log_id:
            raise ConfigurationError(
                f"{attempted}: the cursor belongs to another log",
                remedy=f"start again: `cdcflow consumer restart {self.name}`, and read without a cursor",
            )
        if cursor.consumer != self.name:
            raise ConfigurationError(
                f"{attempted}: the cursor is consumer {cursor.consumer}'s",
                remedy="give a cursor that this consumer handed out, or none",
            )
        if cursor.part is not None and not self._has(cursor):
            raise ConfigurationError(
                f"{attempted}: the cursor belongs to an earlier backfill of the consumer, which has been restarted "
                "since",
                remedy="empty what was built from the earlier one, and read without a cursor",
            )
        is_between = not _is_before(cursor, self.last_commit) and _is_before(cursor, self.committed)
        return self.committed if is_between else cursor

    def is_before(self, cursor: Cursor) -> bool:
        """Whether a (checked) cursor is before the last commit, or before the backfill in progress."""
        return _is_before(cursor, self.committed)

    def _has(self, cursor: Cursor) -> bool:
        known = self.backfill
        return (
            known is not None
            and cursor.part is not None
            and cursor.generation == self.generation
            and cursor.offset == known.offset
            and cursor.part < len(known.parts)
        )

    def to_json(self) -> str:
        cursors = {"committed": str(self.committed), "last_commit": str(self.last_commit)}
        return json.dumps({"version": STATE_VERSION, **asdict(self), **cursors}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> ConsumerState:
        """Read what `to_json` wrote.

        Raises:
            InvariantViolated: it is not a consumer's state; `name` is the file's name for the message.
        """
        try:
            found: Mapping[str, Any] = json.loads(text)
            if found["version"] != STATE_VERSION:
                raise ConfigurationError(
                    f"reading {name}: another version of cdcflow wrote it (version {found['version']})",
                    remedy="use that version, or drop the consumer with it and create it again",
                    runbook="newer-format",
                )
            defined, kept = found["definition"], found["backfill"]
            tables = defined["tables"]
            definition = Definition(defined["name"], None if tables is None else tuple(tables), defined["ops"])
            backfill = (
                None
                if kept is None
                else LogBackfill(kept["offset"], kept["clock"], tuple(BackfillPart(**part) for part in kept["parts"]))
            )
            cursors = Cursor.of(found["committed"]), Cursor.of(found["last_commit"])
            return cls(definition, found["log_id"], found["generation"], backfill, *cursors)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvariantViolated(
                f"reading {name}: it is not a consumer's state ({type(error).__name__})",
                remedy="restore the file from a copy; or remove it and create the consumer again",
                runbook="log-damaged",
            ) from None


def _is_before(cursor: Cursor, other: Cursor) -> bool:
    """Return whether a cursor is before `other`, both of one backfill or of the changes after it."""
    if other.part is None:
        return cursor.part is not None or cursor.offset < other.offset
    if cursor.part is None:
        return cursor.offset < other.offset
    return (cursor.part, cursor.place) < (other.part, other.place)
