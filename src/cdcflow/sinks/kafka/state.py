"""The contents of the checkpoint's topic: the log's identity, writer and latest checkpoint, and its topic ranges.

log                     format, log id, identity of the source
writer                  epoch and process of the latest opening
cut                     the smaller part of the latest checkpoint
source, progress/…      the larger part, entry by entry, each written only when it has changed
shape/TABLE/NUMBER      every shape that a table has had
stretch/OFFSET          where the log's topic can be read from

Written in the same Kafka transaction as the rows before it, and compacted by the brokers, so that what is read at a
start stays short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import other_version
from cdcflow.log.format.records import Message
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.model.position import Checkpoint, Epoch, SourceIdentity
from cdcflow.model.table import Table, table_from_json

FORMAT = 1
NO_EPOCH = Epoch(0)
LOG, WRITER, CUT, SOURCE, PROGRESS, TOPIC_RANGE, SHAPE = (
    "log",
    "writer",
    "cut",
    "source",
    "progress",
    "stretch",
    "shape",
)

StateRecord = tuple[bytes, bytes | None]
"""Key and value of a record; None: the key's previous value no longer holds."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """A part of the topic that can be read by itself.

    It begins at `topic_offset` of the topic, with offset `first_offset` of the log. `newest_xid` is the latest of the
    transactions before it (None if there were no transactions, or it is unknown).
    """

    topic_offset: int
    first_offset: int
    newest_xid: int | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a log in Kafka. `log_id` is empty if no log exists yet. `writer` names the process that opened the
    log in this epoch.

    `newest_xid` is the latest (by 32 bits, which wrap) of the source's transactions in the log.
    """

    log_id: str = ""
    identity: SourceIdentity | None = None
    epoch: Epoch = NO_EPOCH
    writer: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    newest_xid: int | None = None
    topic_ranges: tuple[TopicRange, ...] = ()
    shapes: SchemaHistory = field(default_factory=SchemaHistory)


def read(messages: Iterable[Message], name: str) -> TopicState:
    """Return the state: the latest value of each key.

    Raises:
        ConfigurationError: another version of cdcflow wrote it.
        InvariantViolated: cdcflow did not write it.
    """
    newest: dict[str, Any] = {}
    try:
        for message in messages:
            # A repeated key moves to the end, so that topic ranges and shapes are in the order of the log.
            newest[message.key.decode()] = json.loads(message.value) if message.value else None
        said = {key: value for key, value in newest.items() if value is not None}
        if LOG in said and said[LOG]["format"] != FORMAT:
            raise other_version(f"topic {name}", f"format {said[LOG]['format']}", said[LOG]["format"], FORMAT)
        return _state(said)
    except (ValueError, KeyError, TypeError) as error:
        raise InvariantViolated(
            f"reading topic {name}: a record in it is not one that cdcflow wrote ({type(error).__name__})",
            runbook="log-damaged",
        ) from None


def _state(said: Mapping[str, Any]) -> TopicState:
    progress: dict[str, Any] = {}
    history = SchemaHistory()
    topic_ranges: list[TopicRange] = []
    for key, value in said.items():
        kind, _, rest = key.partition("/")
        if kind == PROGRESS:
            member, split, entry = rest.partition("/")
            if split:
                progress.setdefault(member, {})[entry] = value
            else:
                progress[member] = value
        elif kind == SHAPE:
            history.learn(table_from_json(value["table"]), value["number"])
        elif kind == TOPIC_RANGE:
            topic_ranges.append(TopicRange(value["place"], value["first_offset"], value["newest_xid"]))
    state = TopicState(shapes=history, topic_ranges=tuple(sorted(topic_ranges, key=lambda s: s.topic_offset)))
    if LOG in said:
        state = replace(state, log_id=said[LOG]["log_id"], identity=SourceIdentity.from_json(said[LOG]["identity"]))
    if WRITER in said:
        state = replace(state, epoch=Epoch(said[WRITER]["epoch"]), writer=said[WRITER]["process"])
    if CUT in said:
        cut = dict(said[CUT])
        state = replace(state, newest_xid=cut.pop("newest_xid"))
        whole = {**cut, "progress": progress, "source": said.get(SOURCE, {})}
        state = replace(state, checkpoint=Checkpoint.from_json(json.dumps(whole)))
    return state


# ── records ─────────────────────────────────────────────────────────────────────────────────────────────


def of_log(log_id: str, identity: SourceIdentity) -> StateRecord:
    return _state_record(LOG, {"format": FORMAT, "log_id": log_id, "identity": identity.to_json()})


def of_writer(epoch: Epoch, process: str) -> StateRecord:
    return _state_record(WRITER, {"epoch": epoch, "process": process})


def of_checkpoint(before: Checkpoint, after: Checkpoint, newest_xid: int | None) -> Iterator[StateRecord]:
    """Return the records to write for a checkpoint, given the previous one.

    Checkpoints are immutable, and a changed one is a different object: a cut of an idle table costs the same whether
    there are ten tables or ten thousand.
    """
    if after.source is not before.source and after.source != before.source:
        yield _state_record(SOURCE, dict(after.source))
    if after.progress is not before.progress:
        known, now = _entries(before.progress), _entries(after.progress)
        for key, value in now.items():
            if key not in known or (value is not known[key] and value != known[key]):
                yield _state_record(key, value)
        for key in known.keys() - now.keys():
            yield key.encode(), None
    value = json.loads(replace(after, progress={}, source={}).to_json())
    small = {k: v for k, v in value.items() if k not in ("progress", "source")}
    yield _state_record(CUT, {**small, "newest_xid": newest_xid})


def of_shape(table: Table, number: int) -> StateRecord:
    return _state_record(f"{SHAPE}/{table.id}/{number}", {"number": number, "table": table.to_json()})


def of_topic_range(topic_range: TopicRange) -> StateRecord:
    value = {
        "place": topic_range.topic_offset,
        "first_offset": topic_range.first_offset,
        "newest_xid": topic_range.newest_xid,
    }
    return _state_record(f"{TOPIC_RANGE}/{topic_range.topic_offset:020d}", value)


def of_expired(topic_range: TopicRange) -> StateRecord:
    """The record for a range that the log's topic no longer has."""
    return f"{TOPIC_RANGE}/{topic_range.topic_offset:020d}".encode(), None


def _entries(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The progress in pieces that change independently: the entries of its members, one key each."""
    found: dict[str, Any] = {}
    for member, value in progress.items():
        if isinstance(value, dict) and value:
            found |= {f"{PROGRESS}/{member}/{entry}": v for entry, v in value.items()}
        else:
            found[f"{PROGRESS}/{member}"] = value
    return found


def _state_record(key: str, value: object) -> StateRecord:
    return key.encode(), json.dumps(value, separators=(",", ":")).encode()
