"""The position of a reader of several logs: an offset in each of them, as an opaque text for users."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.errors import ConfigurationError

_VERSION = 1
ANEW = "start again: read every table as of one time (`current`), and continue after it (`cursor`)"
"""The remedy if reading cannot continue from a cursor."""


@dataclass(frozen=True, slots=True)
class Places:
    """A position up to which everything was returned: for each log, by its name, its id and the last offset."""

    logs: Mapping[str, tuple[str, int]]

    def __str__(self) -> str:
        fields = [_VERSION, {name: list(one) for name, one in self.logs.items()}]
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")

    def with_offset(self, log: str, offset: int) -> Places:
        return Places({**self.logs, log: (self.logs[log][0], offset)})

    def offset(self, log: str) -> int:
        return self.logs[log][1]

    @classmethod
    def of(cls, text: str, ids: Mapping[str, str]) -> Places:
        """Parse a cursor over the logs with these ids, keyed by name.

        Raises:
            ConfigurationError: the text is not a cursor, or one of other logs.
        """
        attempted = f"reading {', '.join(sorted(ids))} from a cursor"
        try:
            version, logs = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
            if version != _VERSION:
                raise ValueError
            found = {name: (str(log_id), int(offset)) for name, (log_id, offset) in logs.items()}
        except (ValueError, TypeError, AttributeError, binascii.Error):
            raise ConfigurationError(
                "reading several logs from a cursor: the text is not a cursor, or only a part of one",
                remedy="give the whole text that came with a batch, or none: then the reader begins with the oldest"
                " change",
            ) from None
        if found.keys() != ids.keys():
            raise ConfigurationError(
                f"{attempted}: the cursor belongs to logs {', '.join(sorted(found))}",
                remedy=f"open the logs that the cursor names, by the same names; for others {ANEW}",
            )
        for name, (log_id, _) in found.items():
            if log_id != ids[name]:
                raise ConfigurationError(
                    f"{attempted}: log {name} is not the cursor's log of that name",
                    remedy=f"open the log that was read before as {name}, or {ANEW}",
                )
        return cls(found)
