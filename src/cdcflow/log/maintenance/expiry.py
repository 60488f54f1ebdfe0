"""The thread that expires a log by its policy during a capture. Its errors are reported, and end nothing.

oldest ──segment──segment──segment──│──segment──▶        │ the offset that the slowest reader has reached
         └ older than age, or more than bytes ┘
         └─────────── expire ─────┘
                                  └ state: every table's rows at its end are stored first, if configured
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.states import state_offsets
from cdcflow.log.maintenance import consumer_files as consumers
from cdcflow.log.maintenance import state_writer
from cdcflow.log.maintenance.background import BackgroundTask, OnEvent
from cdcflow.log.maintenance.retention import GRACE_S, PATIENCE_S, ExpiryRule, LogRetention, RemoteStore, expiring
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.read.reader import list_segments


@dataclass(frozen=True, slots=True)
class ExpiryPolicy:
    """Which segments expire: those that ended `age_s` ago, and the oldest while all have more than `bytes_max`.

    A segment that a reader still needs never expires. The readers are those of `keep_for`, each a kind and a name;
    every other reader of these kinds that has left a note; and, with `consumers`, the consumers stored in the log's
    folder.
    """

    age_s: float | None
    bytes_max: int | None
    keep_for: Sequence[tuple[str, str]]
    consumers: bool = True

    def rule(self, now_s: float) -> ExpiryRule:
        clock = None if self.age_s is None else int((now_s - self.age_s) * 1e6)
        return ExpiryRule(before_clock=clock, bytes_max=self.bytes_max)


class Expiring(BackgroundTask):
    """Expires segments of one log every `every_s` seconds. A context manager; leaving it waits for no store."""

    put_off = "retention put off"

    def __init__(
        self,
        layout: Layout,
        policy: ExpiryPolicy,
        on_event: OnEvent,
        *,
        every_s: float,
        remote: RemoteStore | None = None,
        keeping: Callable[[], Keeping] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keeping`: stores the tables' rows before segments expire; `None`: they are not stored."""
        super().__init__("cdcflow-retention", on_event, every_s)
        self._layout = layout
        self._policy = policy
        self._remote = remote
        self._keeping = keeping
        self._clock = clock

    def step(self) -> None:
        """Expire the segments that may expire now."""
        if not self._layout.log_json.exists():
            return
        rule = self._policy.rule(self._clock())
        offset, reason, cause = self._floor()
        due = expiring(list_segments(self._layout), rule)
        held = [segment for segment in due if offset is not None and segment.last_offset > offset]
        going = due[: len(due) - len(held)]
        if going and (lacking := self._keep(going[-1].last_offset)):
            held, going, reason, cause = due, [], lacking, ""
        if going:
            retention = LogRetention(self._layout, self._remote, grace_s=GRACE_S, wait=self._patience())
            gone = retention.expire(replace(rule, last_offset_max=going[-1].last_offset))
            if gone:
                size = sum(segment.size for segment in gone)
                told = {"segments": len(gone), "bytes": size, "first_offset": gone[-1].last_offset + 1}
                behind = left_behind(self._layout)
                self._tell("log expired", {**told, "consumers_behind": ", ".join(behind)} if behind else told)
            if self._keeping is not None:
                state_writer.tidy(self._layout)
        if held:
            self._say("retention waits", f"{len(held)} segments are due and kept: {reason}", cause)
        else:
            self._is_well()

    def _keep(self, offset: int) -> str:
        """Store the tables' rows as of an offset, if that is configured.

        Return why that is not possible yet; "" if it is done, or not configured.
        """
        if self._keeping is None:
            return ""
        lacking = self._keeping().keep_state(offset)
        return f"log.retention.state cannot keep all tables. {lacking}" if lacking else ""

    def _floor(self) -> tuple[int | None, str, str]:
        """Return the last offset that may expire (`None`: any), the reason, and which reader limits it, as a text
        without figures."""
        limiting: notes.Note | None = None
        for note in consumers.notes(self._layout) if self._policy.consumers else ():
            if limiting is None or note.offset < limiting.offset:
                limiting = note
        for kind, name in self._policy.keep_for:
            if notes.read(self._layout, kind, name) is None:
                reason = f"no {kind} into {name} has reported its position yet (log.retention.keep_for)"
                return 0, reason, reason
            for note in notes.all_of(self._layout, kind):
                if limiting is None or note.offset < limiting.offset:
                    limiting = note
        if limiting is None:
            return None, "", ""
        return limiting.offset, _reason(limiting), " ".join((limiting.kind, limiting.name, *limiting.held_by))

    def _patience(self) -> Callable[[float], bool]:
        until = time.monotonic() + PATIENCE_S
        return lambda seconds: self._closing.wait(seconds) or time.monotonic() > until


def left_behind(layout: Layout) -> list[str]:
    """Return the names of the consumers that need expired rows."""
    begins = layout.log_file().first_offset
    has_state = begins - 1 in state_offsets(layout)
    found = consumers.states(layout.root / consumers.FOLDER)
    return [one.name for one in found if one.has_lost(begins, has_state=has_state)]


def _reason(note: notes.Note) -> str:
    if note.kind == "consumer":
        return f"consumer {note.name} needs the log after offset {note.offset} (log.retention.keep_for)"
    if note.held_by:
        return f"the merge into {note.name} skips {', '.join(note.held_by)}, which may need them"
    return f"the {note.kind} into {note.name} has reached offset {note.offset}"
