"""The published position: one record in a separate topic, written in the same Kafka transaction as the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cdcflow.errors import ConfigurationError

FORMAT = 1
KEY = b"position"


@dataclass(frozen=True, slots=True)
class Published:
    """The published position: everything before `next_offset` of this log is in the topics; `position` is that of its
    last transaction.

    `gap`: the number of the last gap that readers were notified of. `unverified`: the tables whose gap has not ended in
    the topics, each with the gap's number and its offset.
    """

    log_id: str
    next_offset: int = 1
    position: str | None = None
    gap: int = 0
    unverified: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, text: bytes, topic: str) -> Published:
        """Read what `to_json` wrote.

        Raises:
            ConfigurationError: something else wrote it, or a newer cdcflow.
        """
        try:
            value = json.loads(text)
            if value["format"] == FORMAT:
                unverified = {name: (number, offset) for name, (number, offset) in value.get("unverified", {}).items()}
                return cls(value["log_id"], value["next_offset"], value["position"], value.get("gap", 0), unverified)
        except (ValueError, KeyError, TypeError):
            pass
        raise ConfigurationError(
            f"publishing: topic {topic} holds a position that this cdcflow cannot read",
            remedy="publish with the version that wrote it, or under another publish.kafka.topic_prefix",
            runbook="newer-format",
        )
