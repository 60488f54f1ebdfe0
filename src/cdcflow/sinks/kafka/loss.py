"""Detects what the brokers have lost of a log, by its checkpoint, its history and this machine's note.

Records are deleted by retention, by a command, by recreating a topic, or with the disk of the only broker that had
them. The checkpoint is in a separate topic and outlives most of this, so a daemon that checked nothing else would
continue after a hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdcflow.capture.ports.findings import Finding
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, storing, write_file
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import LogLocation
from cdcflow.sinks.kafka.failures import GONE
from cdcflow.sinks.kafka.frames import last_cut_of, read_state
from cdcflow.sinks.kafka.state import TopicState
from cdcflow.sinks.kafka.topics import Admin, PartitionReader, Topics

ACCEPTED = "run `cdcflow run --accept-history-loss`, which reads all tables again"
_BEGIN_ANEW = f"bring the topics back from a copy; or {ACCEPTED} into a new log"
_NOTE = "log_id"


def check_there(topics: Topics, admin: Admin, attempted: str, folder: Path | None) -> None:
    """Check that the topics exist if this machine has a note that a log is in them.

    Called before they are created, which would replace topics that an operator may restore.

    Raises:
        HistoryLost: neither exists.
    """
    if _read_note(folder) is not None and not admin.partitions():
        gone = deletion_finding(topics, folder)
        assert gone is not None  # noqa: S101  a note exists
        raise HistoryLost(f"{attempted}: {gone.text}", remedy=gone.remedy, runbook="topic-gone")


def check(
    topics: Topics,
    reader: PartitionReader,
    state: TopicState,
    attempted: str,
    folder: Path | None,
    history: LogLocation | None,
    *,
    accepted: bool = False,
    reopened: bool = False,
) -> int:
    """Check that the topic has everything up to its checkpoint. Return the first topic offset that the brokers have.

    `reader`: of the log's topic. `folder`: this machine's note (see `note`). `history`: where sealed segments are.
    `accepted`: an operator accepts that rows are gone, and has all tables read again. `reopened`: this process had the
    log open before, so expiry since then is normal.

    Raises:
        InvariantViolated: the log's topic does not end at the checkpoint.
        HistoryLost: everything up to the checkpoint is gone, or the log itself.
    """
    low, cut = reader.bounds()[0], last_cut_of(reader, state)
    if cut not in (None, state.checkpoint.cut):
        raise InvariantViolated(
            f"{attempted}: it ends with cut {cut}, and topic {topics.state} says {state.checkpoint.cut}: one of "
            f"them was recreated, or lost committed records",
            remedy=GONE,
            runbook="topic-gone",
        )
    if accepted:
        return low
    if state.identity is None:
        if (known := _read_note(folder)) is not None:
            raise HistoryLost(
                f"{attempted}: the log with the id {known} no longer exists: topics "
                f"{topics.name} and {topics.state} were deleted or recreated",
                remedy=_BEGIN_ANEW,
                runbook="topic-gone",
            )
    elif not reopened and (expired := expired_whole(topics, state, history, low)) is not None:
        raise HistoryLost(
            f"{attempted}: {expired}",
            remedy=f"keep records in the topic for longer (retention.ms, retention.bytes); then {ACCEPTED}",
            runbook="topic-expired",
        )
    return low


def expired_whole(topics: Topics, state: TopicState, history: LogLocation | None, low: int) -> str | None:
    """Return why no row of the log up to its checkpoint can be read; None if one can, or if the log has no rows.

    `low`: the first topic offset that the brokers have.
    """
    upto = state.checkpoint.next_offset - 1
    if upto < 1 or any(s.topic_offset >= low and s.first_offset <= upto for s in state.topic_ranges):
        return None
    if _last_sealed_offset(history, state) >= upto:
        return None
    return (
        f"the brokers have removed the rows up to offset {upto}, which topic {topics.state} still lists: topic "
        f"{topics.name} begins at topic offset {low}"
    )


def findings(topics: Topics, folder: Path | None, history: LogLocation | None) -> Iterator[Finding]:
    """Return findings for what `check` would stop for, and for rows that were deleted before they were sealed."""
    subject = f"log in topic {topics.name}"
    state = read_state(topics)
    try:
        with topics.reader(topics.name) as reader:
            check(topics, reader, state, "comparing the log with its checkpoint", folder, history)
    except (InvariantViolated, HistoryLost) as lost:
        yield Finding("error", subject, str(lost).split("\n")[0], lost.remedy)
        return
    with topics.reader(topics.name) as reader:
        low = reader.bounds()[0]
    first = min(
        (s.first_offset for s in state.topic_ranges if s.topic_offset >= low), default=state.checkpoint.next_offset
    )
    sealed = _last_sealed_offset(history, state)
    if history is not None and 0 < sealed < first - 1:
        name = Layout.of(history).name
        yield Finding(
            "error",
            subject,
            f"the brokers have removed offsets {sealed + 1} to {first - 1} before they were sealed into {name}",
            "move the history away, run `cdcflow backfill`, then merge again; keep records in the topic for longer",
        )


def deletion_finding(topics: Topics, folder: Path | None) -> Finding | None:
    """The finding if neither topic exists; None if this machine knows of no log in them."""
    known = _read_note(folder)
    if known is None:
        return None
    text = f"topics {topics.name} and {topics.state}, which had log {known}, are gone"
    return Finding("error", f"log in topic {topics.name}", text, _BEGIN_ANEW)


def problem(topics: Topics, folder: Path, history: LogLocation) -> str | None:
    """Return why a daemon would not start on this log, in a line; None if no problem is known, or the log never
    existed.

    Raises:
        SinkUnavailable: the brokers do not answer.
    """
    try:
        there = Admin(topics, f"checking the log in topic {topics.name}").partitions()
        if not there:
            gone_both = deletion_finding(topics, folder)
            return None if gone_both is None else gone_both.text
        if gone := {topics.name, topics.state} - there.keys():
            return f"topic {gone.pop()} is gone"
        return next((f.text for f in findings(topics, folder, history) if f.level == "error"), None)
    except (InvariantViolated, ConfigurationError) as error:
        return str(error).split("\n")[0]


def note(folder: Path | None, log_id: str) -> None:
    """Note the log's id with the daemon's other local files. If the note is lost, only its warning is lost."""
    if folder is not None and _read_note(folder) != log_id:
        with storing(f"writing the log's id into {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(OS_LAYER, folder / _NOTE, f"{log_id}\n".encode())


def _read_note(folder: Path | None) -> str | None:
    try:
        return None if folder is None else (folder / _NOTE).read_text().strip() or None
    except FileNotFoundError:
        return None


def _last_sealed_offset(history: LogLocation | None, state: TopicState) -> int:
    """The last offset of this log in its history; 0 if it has no segments."""
    layout = None if history is None else Layout.of(history)
    if layout is None or not layout.exists() or layout.log_file().log_id != state.log_id:
        return 0
    return max((last for _, last in layout.segments_behind(state.checkpoint.next_offset)), default=0)
