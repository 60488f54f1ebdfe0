"""The faults that are injected into a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from unittest import mock

from cdcflow.capture.interleave import machine
from cdcflow.capture.interleave.window_sequence import WindowSequence


@dataclass(frozen=True, slots=True)
class Faults:
    """Bugs that can be planted. `windows` replaces that part of the machine, `patch` one attribute of a class; the
    others are in the source, or in how the process is started."""

    windows: type[WindowSequence] = WindowSequence
    patch: tuple[type | ModuleType, str, object] | None = None
    epoch_forgotten: bool = False
    unchanged_as_null: bool = False
    skips_after_restart: int = 0
    runs_over_running: bool = False
    takes_log_end_for_visible: bool = False
    chunks_before_visible: bool = False
    plans_without_fence: bool = False
    fills_unsaid: bool = False
    deletes_behind_rows: bool = False
    deletes_keys_left: bool = False
    deletes_nothing: bool = False
    proves_unseen: bool = False
    asks_time_late: bool = False
    forgets_record_in_replay: bool = False
    marks_before_what_was_seen: bool = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as planted:
            if self.windows is not WindowSequence:
                planted.enter_context(mock.patch.object(machine, "WindowSequence", self.windows))
            if self.patch is not None:
                planted.enter_context(mock.patch.object(*self.patch))
            yield


NO_FAULTS = Faults()
