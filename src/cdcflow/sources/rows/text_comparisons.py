"""Comparisons of columns whose values are text in the log, and that their database does not compare as text. Pure.

`numeric` without precision, `time`, `json` or `citext` arrive as text. Compared byte by byte, 9 would be greater than
100. So such a comparison is refused, unless the expression has a CAST: `CAST(paid AS decimal(20,4))`, or
`CAST(paid AS text)`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass

_TEXTS = frozenset(
    (
        *("text", "character varying", "varchar", "name", '"char"', "char", "character", "bpchar"),
        *("tinytext", "mediumtext", "longtext"),
        *("string", "large_string", "string_view", "utf8"),
    )
)
"""Types that are text at their source. The last ones are Arrow's names, of sources that have no others."""
_OTHERS = frozenset(
    (
        *("numeric", "decimal", "money", "bit", "bit varying"),
        *("date", "time", "time without time zone", "time with time zone", "interval", "year"),
        *("datetime", "timestamp", "timestamp without time zone", "timestamp with time zone"),
        *("json", "jsonb", "xml", "citext", "ltree", "hstore", "tsvector", "tsquery"),
        *("inet", "cidr", "macaddr", "macaddr8", "inet4", "inet6", "pg_lsn"),
    )
)
"""Types whose equal values may have different texts. A type that is neither here nor above, such as an enum or a
domain, has one text for each value, and may have another order."""
_EQUALITIES = ("=", "<>", "in", "is distinct from", "nullif")
_BLANKS = re.compile(r"(character|bpchar)\((?!1\))\d+\)")


@dataclass(frozen=True, slots=True)
class SourceText:
    """A column of text: its name, and its type at the source."""

    column: str
    type: str

    @property
    def is_uuid(self) -> bool:
        return self.type == "uuid"

    def obstacle(self, comparison: str) -> str | None:
        """Why a comparison of its bytes may differ from the source's, and what to write; None if it cannot."""
        base = re.sub(r"\(\d[\d, ]*\)", "", self.type).strip()
        if comparison == "like" and base != "citext":
            return None
        what = f"compares column {self.column} ({self.type})"
        if _BLANKS.fullmatch(self.type):
            return (
                f"{what} with its blanks, which the source ignores: write trim({self.column}), "
                f"or CAST({self.column} AS text) to compare it with its blanks"
            )
        if base in _TEXTS:
            return None
        if base in _OTHERS or self.type.endswith("]"):
            return (
                f"{what}, which is text in the log: CAST it to what you compare, such as decimal(20,4), or to text, "
                "which is compared byte by byte"
            )
        if comparison not in _EQUALITIES:
            return (
                f"{what} by the order of its text, and the source may have another order: write IN (…), "
                f"or CAST({self.column} AS text)"
            )
        return None


def obstacle_of(columns: Collection[SourceText], comparison: str) -> str | None:
    """The first reason against a comparison of these columns; None if there is none. `comparison`: its name."""
    return next((why for one in columns if (why := one.obstacle(comparison)) is not None), None)


def uuid_text(text: str) -> str:
    """The text that a UUID has in the log. Raises ValueError if it is not a UUID."""
    return str(uuid.UUID(text))
