"""What the checkpoint's topic says: whose log it is, where it stands, and where its stretches begin.

Written in the same Kafka transaction as the rows before it, and compacted by the brokers, so that what is read at a
start stays short. A cut is small; the larger part of a checkpoint is written only when it has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cdcflow.changelog.framing import other_version
from cdcflow.changelog.schema_history import SchemaHistory
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.table import Table, table_from_json
from cdcflow.sinks.kafka.records import Message

FORMAT = 1
LOG, CUT, PROGRESS, STRETCH, SHAPE = b"log", b"cut", b"progress", b"stretch", b"shape"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the topic that can be read by itself: it begins at `place`, with offset `first_offset`.

    `newest_xid` is the newest of the transactions before it (None: there were none).
    """

    place: int
    first_offset: int
    newest_xid: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """`log_id` is empty where there is no log yet."""

    log_id: str = ""
    identity: SourceIdentity | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    stretches: tuple[Stretch, ...] = ()
    shapes: SchemaHistory = field(default_factory=SchemaHistory)

    @property
    def is_whole(self) -> bool:
        """Everything was met that a log's state has."""
        return bool(self.log_id) and self.checkpoint.epoch > 0


def read(messages: Iterable[Message], name: str) -> State:
    """The newest of each kind.

    Raises:
        ConfigurationError: a newer cdcflow wrote it.
    """
    newest: dict[bytes, bytes] = {m.key: m.value for m in messages}
    state = State()
    if LOG in newest:
        log = json.loads(newest[LOG])
        if log["format"] != FORMAT:
            raise other_version(name, f"format {log['format']}", log["format"], FORMAT)
        state = replace(state, log_id=log["log_id"], identity=SourceIdentity.from_json(log["identity"]))
    if CUT in newest:
        progress = json.loads(newest.get(PROGRESS, b'{"progress": {}, "source": {}}'))
        state = replace(state, checkpoint=Checkpoint.from_json(json.dumps({**json.loads(newest[CUT]), **progress})))
    for key, value in newest.items():
        if key.startswith(SHAPE):
            shape = json.loads(value)
            state.shapes.learn(table_from_json(shape["table"]), shape["number"])
    begun = (json.loads(value) for key, value in newest.items() if key.startswith(STRETCH) and value)
    stretches = sorted((Stretch(**value) for value in begun), key=lambda s: s.place)
    return replace(state, stretches=tuple(stretches))


def of_log(log_id: str, identity: SourceIdentity) -> tuple[bytes, bytes]:
    return LOG, json.dumps({"format": FORMAT, "log_id": log_id, "identity": identity.to_json()}).encode()


def of_cut(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    small = replace(checkpoint, progress={}, source={})
    value = {k: v for k, v in json.loads(small.to_json()).items() if k not in ("progress", "source")}
    return CUT, json.dumps(value, separators=(",", ":")).encode()


def of_progress(progress: Mapping[str, object], source: Mapping[str, str]) -> tuple[bytes, bytes]:
    return PROGRESS, json.dumps({"progress": progress, "source": dict(source)}, separators=(",", ":")).encode()


def of_shape(table: Table, number: int) -> tuple[bytes, bytes]:
    return SHAPE + f"/{table.id}/{number}".encode(), json.dumps({"number": number, "table": table.to_json()}).encode()


def of_stretch(stretch: Stretch) -> tuple[bytes, bytes]:
    value = {"place": stretch.place, "first_offset": stretch.first_offset, "newest_xid": stretch.newest_xid}
    return STRETCH + f"/{stretch.place:020d}".encode(), json.dumps(value).encode()


__all__ = ["State", "Stretch", "of_cut", "of_log", "of_progress", "of_shape", "of_stretch", "read"]
