"""The names of slot and publication, and whether cdcflow chose them."""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass

from cdcflow.config import Postgres


@dataclass(frozen=True, slots=True)
class Names:
    """The names of slot and publication. `slot_is_ours`, `publication_is_ours`: cdcflow chose the name. Such a slot is
    never adopted if it exists already, and such a publication is repaired."""

    slot: str
    publication: str
    slot_is_ours: bool
    publication_is_ours: bool

    @classmethod
    def of(cls, settings: Postgres, log_id: str) -> Names:
        made = made_name(log_id)
        return cls(
            settings.slot or made, settings.publication or made, settings.slot is None, settings.publication is None
        )


def made_name(log_id: str) -> str:
    """Return the name of slot and publication if the settings have none."""
    return f"cdcflow_{_eight_hex(log_id)}"


def _eight_hex(log_id: str) -> str:
    plain = log_id.replace("-", "").lower()
    if len(plain) >= 8 and all(c in string.hexdigits for c in plain):
        return plain[:8]
    return hashlib.sha256(log_id.encode()).hexdigest()[:8]
