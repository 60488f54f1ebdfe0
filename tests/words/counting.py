"""How often the repository's prose has each phrase of the table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.words.texts import AREAS, Area, Text

TABLE = Path(__file__).with_name("table.toml")

AIM = 0.05
"""The share of the first counts that is left when the prose is rewritten."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A row of the table. `allowed`: the same words where they are plain English, or a term of the field."""

    number: int
    name: str
    pattern: re.Pattern[str]
    allowed: re.Pattern[str] | None
    better: str
    first: Mapping[Area, int]

    @property
    def aim(self) -> int:
        """How often all areas together may have it in the end."""
        return int(sum(self.first.values()) * AIM)

    def found(self, text: str) -> list[re.Match[str]]:
        """Where a text has it."""
        kept = text if self.allowed is None else self.allowed.sub(lambda m: "·" * len(m[0]), text)
        return list(self.pattern.finditer(kept))


@dataclass(frozen=True, slots=True)
class Place:
    """A phrase in a text."""

    phrase: Phrase
    text: Text
    words: str

    @property
    def line(self) -> str:
        """As compilers write it."""
        return f"{self.text.path}:{self.text.line}: [{self.phrase.number} {self.phrase.name}] {self.words}"


def phrases() -> list[Phrase]:
    """The table."""
    listed = tomllib.loads(TABLE.read_text(encoding="utf-8"))["phrase"]
    return [
        Phrase(
            row["number"],
            row["name"],
            _compiled(row["pattern"]),
            _compiled(row["allowed"]) if "allowed" in row else None,
            row["better"],
            dict(zip(AREAS, row["first"], strict=True)),
        )
        for row in listed
    ]


def places(table: Iterable[Phrase], texts: Iterable[Text], width: int = 40) -> Iterator[Place]:
    """Each phrase that a text has, with what is left and right of it."""
    listed = list(table)
    for text in texts:
        plain = " ".join(text.text.split())
        for phrase in listed:
            for match in phrase.found(plain):
                yield Place(phrase, text, plain[max(0, match.start() - width) : match.end() + width])


def counts(table: Iterable[Phrase], texts: Iterable[Text]) -> dict[int, dict[Area, int]]:
    """By the phrase's number and area."""
    parts: dict[Area, list[str]] = {area: [] for area in AREAS}
    for text in texts:
        parts[text.area].append(" ".join(text.text.split()))
    joined = {area: "\n".join(found) for area, found in parts.items()}
    return {p.number: {area: len(p.found(text)) for area, text in joined.items()} for p in table}


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)
