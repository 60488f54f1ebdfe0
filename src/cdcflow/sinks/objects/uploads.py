"""The thread that puts sealed segments into the bucket and then lets go of their files here.

Capture does not know of it: sealing leaves a segment in the directory and says so, and everything after that happens
here. A store that is away makes segments wait on the local disk; they are tried again and again, oldest first, so that
the bucket always holds the log up to some cut without a hole. `uploads.json` says how far that is, and what is in the
way. It is a shortcut only: without it the bucket is asked segment by segment.

What is dropped here: the data files of a segment, `keep_local` after it was seen whole in the bucket. Its directory and
manifest stay, so that a start, a listing and a merge's plan need nothing from the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace

import structlog
import tenacity

from cdcflow.changelog.layout import UPLOADS, Bounds, Layout, uncovered
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.sinks.layer import OS_LAYER, FileLayer, storing, write_file
from cdcflow.sinks.objects.bucket import Bucket
from cdcflow.sinks.objects.putting import put_log, put_segment
from cdcflow.sinks.objects.shelf import BucketShelf
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.sinks.upkeep import upkeep

LAST_TRY_S = 5.0
"""So long a log that is being closed waits for what is still to be put."""
PAUSE_S_MAX = 30.0
LOOK_EVERY_S = 5.0

_log = structlog.get_logger("cdcflow")


class Uploads:
    """Puts the sealed segments of one log into a bucket. `start`, `wake`, `check` and `close` never wait for the store,
    `close` aside, and that one not for long."""

    def __init__(self, layout: Layout, bucket: Bucket, *, keep_local_s: float, layer: FileLayer = OS_LAYER) -> None:
        self.bucket = bucket
        self._layout = layout
        self._layer = layer
        self._keep_local_s = keep_local_s
        self._lease_check: Callable[[], None] = lambda: None
        self._schemas_put = b""
        self._reached = False
        self._known = Uploaded(bucket.name)
        self._whole: deque[Bounds] = deque()  # those that are in the bucket and here, oldest first
        self._error: CdcflowError | None = None
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="cdcflow-upload", daemon=True)

    def start(self, lease_check: Callable[[], None]) -> None:
        """Begin. `lease_check` raises when another process has taken the log over.

        Raises:
            ConfigurationError: its segments lie in another bucket.
        """
        known = Uploaded.read(self._layout)
        if known is not None and known.url != self.bucket.name:
            raise ConfigurationError(
                f"opening the log {self._layout.root}: its segments are in {known.url}, and log.objects.url is"
                f" {self.bucket.name}",
                remedy=f"copy everything from there to the new place, then remove {self._layout.root / UPLOADS};"
                " or set log.objects.url back",
            )
        self._known = known or self._known
        self._lease_check = lease_check
        self._thread.start()
        self._asked.set()

    def wake(self) -> None:
        """Something was sealed."""
        self._asked.set()

    @property
    def shelf(self) -> BucketShelf:
        """What it has put into the bucket."""
        return BucketShelf(self.bucket)

    @property
    def error(self) -> CdcflowError | None:
        """What has ended it: the log must not go on as if nothing were."""
        return self._error

    def close(self) -> None:
        """Put what is still to be put, if that takes no longer than `LAST_TRY_S`; the next start does the rest."""
        self._closing.set()
        self._asked.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_TRY_S)
        self._given_up = True

    # ── in the thread ───────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self._find_whole()
            is_last = False
            while not is_last:
                self._asked.wait(LOOK_EVERY_S if self._whole else None)
                self._asked.clear()
                is_last = self._closing.is_set()  # asked first: what was sealed before it is put now
                self._all_put()
                self._drop()
        except SinkUnavailable as error:
            self._say(str(error))  # while closing: the next start goes on
        except CdcflowError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a thread that dies unheard would let segments wait for ever
            self._error = InvariantViolated(
                f"putting segments of {self._layout.root} into the store: {type(error).__name__}: {error}"
            )

    def _all_put(self) -> None:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_passing),
            wait=tenacity.wait_random_exponential(0.5, PAUSE_S_MAX),
            stop=tenacity.stop_when_event_set(self._closing),
            sleep=self._pause,
            before_sleep=self._tell,
            reraise=True,
        ):
            with attempt:
                self._put_pending()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _is_passing(self, error: BaseException) -> bool:
        """Whether to wait and try again. A store that refuses from the start needs an operator; one that took segments
        before may have lost a right for a while, and nothing is lost by waiting."""
        return isinstance(error, SinkUnavailable) or (self._reached and isinstance(error, ConfigurationError))

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        text = str(error).splitlines()[0]
        if text != self._known.problem:
            self._say(text)
        pause_s = state.next_action.sleep if state.next_action is not None else 0.0
        _log.warning("upload put off", problem=text, tries=state.attempt_number, pause_s=round(pause_s, 1))

    def _put_pending(self) -> None:
        if not self._reached:  # also without a segment: a wrong url, or another log there, is heard at the start
            put_log(self.bucket, self._layout)
            self._reached = True
        while (bounds := self._next()) is not None:
            with upkeep(self._layout, self._closing.wait):
                self._put(bounds)

    def _next(self) -> Bounds | None:
        if self._given_up:
            return None
        found = uncovered([b for b in self._layout.listed_segments()[0] if b[0] > self._known.last_offset])
        return found[0] if found else None

    def _put(self, bounds: Bounds) -> None:
        directory = self._layout.segment(*bounds)
        try:
            segment, text = self._layout.manifest(*bounds)
        except FileNotFoundError:
            return  # compacted or expired just now: look again
        began = time.monotonic()
        schemas = self._layout.schemas_json() or b""
        if schemas != self._schemas_put:
            self.bucket.put("schemas.json", schemas)
            self._schemas_put = schemas
        self._lease_check()
        put_segment(self.bucket, segment, text, directory)
        with storing(f"noting in {self._layout.root} what was put"):
            os.utime(directory / "segment.json")  # from now on `keep_local` counts
            self._write(replace(self._known, last_offset=bounds[1], problem=""))
        self._whole.append(bounds)
        _log.info(
            "segment uploaded",
            first_offset=segment.first_offset,
            last_offset=segment.last_offset,
            bytes=segment.size,
            seconds=round(time.monotonic() - began, 2),
        )

    def _find_whole(self) -> None:
        for bounds in self._layout.segment_offsets():
            if bounds[1] <= self._known.last_offset and len(list(self._layout.segment(*bounds).iterdir())) > 1:
                self._whole.append(bounds)

    def _drop(self) -> None:
        while self._whole and not self._given_up:
            directory = self._layout.segment(*self._whole[0])
            with storing(f"dropping uploaded files of {directory}"), contextlib.suppress(FileNotFoundError):
                if time.time() - (directory / "segment.json").stat().st_mtime < self._keep_local_s:
                    return
                with upkeep(self._layout, self._closing.wait):
                    self._lease_check()
                    for path in directory.iterdir():
                        if path.name != "segment.json":
                            self._layer.unlink(path)
            self._whole.popleft()

    def _say(self, problem: str) -> None:
        with contextlib.suppress(CdcflowError):
            self._write(replace(self._known, problem=problem))

    def _write(self, known: Uploaded) -> None:
        if not self._given_up:
            with storing(f"writing {self._layout.root / UPLOADS}"):
                write_file(self._layer, self._layout.root / UPLOADS, json.dumps(asdict(known)).encode())
            self._known = known
