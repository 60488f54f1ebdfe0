"""The stored ceilings: how often each phrase may be in each area. They only fall."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.words.texts import AREAS, Area

CEILINGS = Path(__file__).with_name("ceilings.json")


def read_ceilings() -> dict[int, dict[Area, int]]:
    """By the phrase's number and area."""
    stored = json.loads(CEILINGS.read_text(encoding="utf-8"))
    return {int(number): dict(zip(AREAS, found, strict=True)) for number, found in stored.items()}


def write_ceilings(counts: Mapping[int, Mapping[Area, int]]) -> None:
    """Store today's counts where they are lower. A phrase that has no ceiling yet gets one."""
    ceilings = read_ceilings() if CEILINGS.exists() else {}
    lowered = {n: [min(found[a], ceilings.get(n, found)[a]) for a in AREAS] for n, found in counts.items()}
    lines = [f'  "{number}": {json.dumps(found)}' for number, found in sorted(lowered.items())]
    CEILINGS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
