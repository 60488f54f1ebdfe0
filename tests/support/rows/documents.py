"""Random JSON documents, usual and hostile ones, from a seed, and what both kernels find in them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pyarrow as pa

from cdcflow.sources.rows.kernels import COMPILED, CompiledPaths, json_text

Path = tuple[str | int, ...]

NAMES = ["a", "b", "", "ä", "a b", "constructor", "a\\", 'a"', "\u2028"]
_TEXTS = [
    "", "x", "Bonn", "Köln", "\U0001f600", "\x7f", "\u2028", "a" * 40,
    '\\"', "\\\\", "\\/", "\\b\\f\\n\\r\\t", "\\u0041", "\\u00e9",
    "\\u20AC", "\\ud83d\\ude00", "\\uD800", "\\udc00x", "\\u0000", "\\u001f", "é\\u00e9", "\\uFFFF",
    "0123456\\\\", "null",
    "a\tb", "a\nb", "\0", "\x1f", "\\x41", "\\u12", "\\u12g4", "\\u+123", "\\", "\\'", "\ufeff",
]  # fmt: skip
_NUMBERS = [
    "0", "-0", "7", "-17", "3.25", "1e5", "1E+5", "-1.5e-300", "1e400", "9" * 40, "0.1000", "-0.0",
    "123456789012345678901234567890",
    "01", "1.", ".5", "-", "+1", "1e", "1e+", "0x10", "1_000", "--1", "- 1", "0.e1", "\u0661", "-01", "1.5.2", "00",
]  # fmt: skip
_WORDS = ["true", "false", "null", "NaN", "Infinity", "-Infinity", "True", "nul", "tru", "nullx", "undefined"]
_BLANKS = ["", "", "", "", " ", "\t", "\n", "\r", "  ", "\v", "\xa0", "\ufeff"]


class _Writer:
    """Writes one document. `odds`: how often something unusual is written."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._odds = chance.choice([0.0, 0.0, 0.02, 0.2])
        self._as_jsonb = chance.random() < 0.5

    def _is_odd(self) -> bool:
        return self._chance.random() < self._odds

    def _blank(self, usual: str = "") -> str:
        if self._is_odd():
            return self._chance.choice(_BLANKS)
        return usual if self._as_jsonb else self._chance.choice(["", "", " ", "\n  "])

    def text(self) -> str:
        choices = _TEXTS if self._is_odd() else _TEXTS[:24] if self._chance.random() < 0.5 else _TEXTS[:8]
        return f'"{self._chance.choice(choices)}{self._chance.choice(choices)}"'

    def _name(self) -> str:
        if self._is_odd():
            return self._chance.choice(['"\\u0061"', "a", "'a'", '"a\\/"', '"\\ud800"', "1", self.text()])
        return json.dumps(self._chance.choice(NAMES), ensure_ascii=self._chance.random() < 0.2)

    def value(self, depth: int = 0) -> str:
        kind = self._chance.random()
        if self._is_odd() and self._is_odd():
            nested = self._chance.choice([40, 63, 64, 65, 70, 200])
            return "[" * nested + self._chance.choice(["1", '"x"', ""]) + "]" * nested
        if depth > 4 or kind < 0.3:
            return self.text()
        if kind < 0.45:
            return self._chance.choice(_NUMBERS if self._is_odd() else _NUMBERS[:13])
        if kind < 0.55:
            return self._chance.choice(_WORDS if self._is_odd() else _WORDS[:3])
        parts = []
        for _ in range(self._chance.choice([0, 1, 1, 2, 3, 3, 4])):
            one = self._blank() + self.value(depth + 1) + self._blank()
            if kind < 0.85:
                one = self._blank() + self._name() + self._blank() + ":" + self._blank(" ") + one.lstrip()
            parts.append(one)
        if kind < 0.6 and self._is_odd():
            parts = [f'"{n}": {n}' for n in range(self._chance.choice([31, 32, 33, 40]))]
        joined = (", " if self._as_jsonb and not self._is_odd() else ",").join(parts)
        if self._is_odd():
            joined += self._chance.choice([",", ":", " ", "]", "}"])
        return f"{{{joined}}}" if kind < 0.85 else f"[{joined}]"

    def document(self) -> str:
        whole = self._blank() + self.value() + self._blank()
        if self._is_odd():
            at, end = sorted(self._chance.choices(range(len(whole) + 1), k=2))
            whole = whole[:at] + self._chance.choice(["", "", '"', "\\", "{", "x", "\ufeff"]) + whole[end:]
        return whole


def documents_of(seed: int) -> tuple[pa.Array, Path]:
    """A column of documents, often a slice of a longer one, and a path."""
    chance = random.Random(seed)
    count = chance.choice([0, 1, 2, 5, 5, 300])
    writer = _Writer(chance)
    texts = [None if chance.random() < 0.1 else writer.document() for _ in range(count)]
    steps: list[str | int] = chance.choices([*NAMES[:4], *NAMES, 0, 0, 1, 2], k=chance.choice([0, 1, 1, 2, 3]))
    first = chance.randrange(count + 1) if chance.random() < 0.5 else 0
    return pa.array(texts, pa.string()).slice(first), tuple(steps)


def path_differs(documents: pa.Array, path: Sequence[str | int]) -> str | None:
    """How the results of the two kernels differ, for the whole column and for each of its documents."""
    for column in [documents, *(documents.slice(i, 1) for i in range(min(len(documents), 40)))]:
        plain, compiled = _outcome(column, path, None), _outcome(column, path, COMPILED)
        if plain != compiled:
            return f"{path} in {column.to_pylist()[:40]!r}: {plain!r} and {compiled!r}"
    return None


def _outcome(documents: pa.Array, path: Sequence[str | int], compiled: CompiledPaths | None) -> object:
    try:
        found = json_text(documents, path, compiled)
    except pa.ArrowInvalid as error:
        return str(error)
    found.validate(full=True)
    return found.type, found.to_pylist()
