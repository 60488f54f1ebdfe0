"""How many names that do not name src/cdcflow may have (it only falls), and which classes may share a name."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

CEILINGS = Path(__file__).with_name("names.json")


@dataclass(frozen=True, slots=True)
class NameCeilings:
    """`participles`: functions named by one. `classes`: names in several modules. `reasons`: why a name may stay so."""

    participles: int
    classes: int
    reasons: dict[str, str]


def read_names() -> NameCeilings:
    """The stored ceilings."""
    return NameCeilings(**json.loads(CEILINGS.read_text(encoding="utf-8")))


def lower_names(participles: int, classes: Collection[str]) -> None:
    """Store today's counts where they are lower, and drop reasons that are no longer needed."""
    ceilings = read_names()
    stored = {
        "participles": min(participles, ceilings.participles),
        "classes": min(len(classes), ceilings.classes),
        "reasons": {name: why for name, why in sorted(ceilings.reasons.items()) if name in classes},
    }
    CEILINGS.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
