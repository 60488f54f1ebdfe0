"""The thread that uploads sealed segments to the bucket and then drops their local files.

Capture does not depend on it: sealing leaves a segment in the directory and wakes this thread, which does everything
after that. If the store is unavailable, segments wait on the local disk and are retried, oldest first, so that the
bucket always holds the log up to some cut without a hole. `uploads.json` records how far that is, and any problem. It
is a shortcut only: without it every segment is looked up in the bucket.

What is dropped: a segment's local data files, `keep_local` after its upload, and only if the bucket still has it with
the content that was sealed. Its directory and manifest stay, so that a start, a listing and a merge's plan need nothing
from the store. At the start and then daily everything that was uploaded is compared with a listing of the bucket: what
the bucket has lost is uploaded again if there is a local copy, and reported if there is none (see `inventory`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import structlog
import tenacity

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, storing, write_file
from cdcflow.log.disk.maintenance_lock import maintenance
from cdcflow.log.files.layout import CHECKPOINT, UPLOADS, Bounds, Layout, widest_segments
from cdcflow.model.position import Checkpoint
from cdcflow.sinks.objects.inventory import together
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.sinks.objects.restore import FindCopy, Restorer
from cdcflow.sinks.objects.upload import put_log, put_segment
from cdcflow.sinks.objects.uploaded import Uploaded, loss
from cdcflow.stores.bucket import Bucket

LAST_TRY_S = 5.0
"""How long closing a log waits for pending uploads."""
PAUSE_S_MAX = 30.0
LOOK_EVERY_S = 5.0
FIRST_ANSWER_S = 2.0
"""How long a start waits for the store's refusal. A store that is unavailable or slow delays it no longer than this."""
COMPARE_EVERY_S = 86400.0
CHECKPOINT_EVERY_S = 15.0
"""The minimum interval between uploads of the source's time while no rows arrive."""
LOST_AGAIN_S = 600.0
"""How often the bucket is compared while something is lost: more often than otherwise, because an operator may be
restoring it."""

_log = structlog.get_logger("cdcflow")


class Uploads:
    """Uploads the sealed segments of one log to a bucket.

    `start`, `wake` and `on_durable` never wait for the store; `close` waits a short time.
    """

    def __init__(
        self,
        layout: Layout,
        bucket: Bucket,
        *,
        keep_local_s: float,
        layer: FileLayer = OS_LAYER,
        cached: FindCopy = lambda segment, file: None,
    ) -> None:
        """`cached`: the path of a file that was read back from the bucket, if it still exists."""
        self.bucket = bucket
        self._layout = layout
        self._layer = layer
        self._keep_local_s = keep_local_s
        self._lease_check: Callable[[], None] = lambda: None
        self._schemas_put = b""
        self._reached = False
        self._known = Uploaded(bucket.name)
        self._closing = threading.Event()
        self._restorer = Restorer(layout, bucket, cached, self._closing.wait)
        self._whole: deque[Bounds] = deque()  # those that are in the bucket and local, oldest first
        self._error: CdcflowError | None = None
        self._compare_at = 0.0
        self._durable = self._told = Checkpoint()
        self._tell_at = 0.0
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="cdcflow-upload", daemon=True)

    def start(self, lease_check: Callable[[], None]) -> None:
        """Start the thread. `lease_check` raises an error when another process has taken the log over.

        Raises:
            ConfigurationError: its segments are in another bucket; or the store refuses: a wrong key, url or region.
        """
        known = Uploaded.read(self._layout)
        if known is not None and known.url != self.bucket.name:
            raise ConfigurationError(
                f"opening the log {self._layout.root}: its segments are in {known.url}, and log.objects.url is"
                f" {self.bucket.name}",
                remedy=f"copy everything from there to the new place, then remove {self._layout.root / UPLOADS};"
                " or set log.objects.url back",
                runbook="other-log",
            )
        self._known = known or self._known
        self._lease_check = lease_check
        self._thread.start()
        self._asked.set()
        self._answered.wait(FIRST_ANSWER_S)
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """Wake the thread, because a segment was sealed."""
        self._asked.set()

    def on_durable(self, checkpoint: Checkpoint) -> None:
        """Note that the log is durable up to this checkpoint."""
        self._durable = checkpoint

    @property
    def remote(self) -> RemoteBucket:
        """The uploaded part of the log."""
        return RemoteBucket(self.bucket)

    @property
    def error(self) -> CdcflowError | None:
        """The error that ended the thread: the log must not continue then."""
        return self._error

    def close(self) -> None:
        """Upload what is pending, if that takes no longer than `LAST_TRY_S`; the next start does the rest."""
        self._closing.set()
        self._asked.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_TRY_S)
        self._given_up = True

    # ── in the thread ───────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self._trying(self._reach)
            self._answered.set()
            self._find_whole()
            is_last = False
            while not is_last:
                self._asked.wait(self._idle_s())
                self._asked.clear()
                is_last = self._closing.is_set()  # read first: what was sealed before it is uploaded now
                self._trying(self._put_pending)
                if not is_last and time.monotonic() >= self._compare_at:
                    self._trying(self._compare)
                if is_last or time.monotonic() >= self._tell_at:
                    self._trying(self._put_checkpoint)
                self._trying(self._drop)
                if self._known.problem:
                    self._say("")
        except SinkUnavailable as error:
            self._say(str(error))  # while closing: the next start continues
        except CdcflowError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would let segments wait forever
            self._error = InvariantViolated(
                f"uploading segments of {self._layout.root} to the store: {type(error).__name__}: {error}"
            )
        finally:
            self._answered.set()

    def _idle_s(self) -> float:
        left = max(0.0, min(self._compare_at, self._tell_at) - time.monotonic())
        return min(LOOK_EVERY_S, left) if self._whole else left

    def _trying(self, work: Callable[[], None]) -> None:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_passing),
            wait=tenacity.wait_random_exponential(0.5, PAUSE_S_MAX),
            stop=tenacity.stop_when_event_set(self._closing),
            sleep=self._pause,
            before_sleep=self._tell,
            reraise=True,
        ):
            with attempt:
                work()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _is_passing(self, error: BaseException) -> bool:
        """Whether to wait and try again.

        A store that refuses from the start needs an operator; one that took segments before may refuse temporarily, and
        nothing is lost by waiting.
        """
        return isinstance(error, SinkUnavailable) or (self._reached and isinstance(error, ConfigurationError))

    def _tell(self, state: tenacity.RetryCallState) -> None:
        self._answered.set()
        error = state.outcome.exception() if state.outcome is not None else None
        text = str(error).splitlines()[0]
        if text != self._known.problem:
            self._say(text)
        pause_s = state.next_action.sleep if state.next_action is not None else 0.0
        _log.warning("upload put off", problem=text, tries=state.attempt_number, pause_s=round(pause_s, 1))

    def _reach(self) -> None:
        """Send the first request, even without a segment, so that a wrong key, or another log in the bucket, is
        reported at the start."""
        put_log(self.bucket, self._layout)
        self._reached = True

    def _put_pending(self) -> None:
        while (bounds := self._next()) is not None:
            with maintenance(self._layout, self._closing.wait):
                self._put(bounds)

    def _next(self) -> Bounds | None:
        if self._given_up:
            return None
        found = widest_segments([b for b in self._layout.listed_segments()[0] if b[0] > self._known.last_offset])
        return found[0] if found else None

    def _put(self, bounds: Bounds) -> None:
        directory = self._layout.segment(*bounds)
        try:
            segment, text = self._layout.manifest(*bounds)
        except FileNotFoundError:
            return  # compacted or expired since: check again
        began = time.monotonic()
        self._put_schemas()
        self._lease_check()
        put_segment(self.bucket, segment, text, directory)
        with storing(f"recording in {self._layout.root} what was uploaded"):
            os.utime(directory / "segment.json")  # `keep_local` counts from now on
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

    def _put_schemas(self) -> None:
        schemas = self._layout.schemas_json() or b""
        if schemas != self._schemas_put:
            self.bucket.put("schemas.json", schemas)
            self._schemas_put = schemas

    def _put_checkpoint(self) -> None:
        """Upload the source's time for readers of the store, if the store already has every row up to it."""
        at = self._durable
        if self._known.last_offset and at.next_offset - 1 == self._known.last_offset and at.cut > self._told.cut:
            self._lease_check()
            self.bucket.put(CHECKPOINT, at.to_json().encode())
            self._told = at
        self._tell_at = time.monotonic() + CHECKPOINT_EVERY_S

    def _compare(self) -> None:
        """Compare all that was uploaded with the bucket; upload again what it lost, record what has no copy left."""
        self._lease_check()
        if self._known.last_offset:
            put_log(self.bucket, self._layout)
            self._schemas_put = b""
            self._put_schemas()
            self._note(self._restorer.compare(self._known.last_offset))
        self._compare_at = time.monotonic() + (LOST_AGAIN_S if self._known.lost else COMPARE_EVERY_S)

    def _note(self, found: Sequence[Bounds]) -> None:
        lost = tuple(together(found))
        if lost:
            text, remedy = loss(self._layout, self.bucket.name, lost)
            _log.error("segments lost", problem=text, remedy=remedy)
        if lost != self._known.lost:
            self._write(replace(self._known, lost=lost))

    def _drop(self) -> None:
        while self._whole and not self._given_up:
            directory = self._layout.segment(*self._whole[0])
            with storing(f"dropping uploaded files of {directory}"):
                try:
                    put_at = (directory / "segment.json").stat().st_mtime
                except FileNotFoundError:
                    put_at = 0.0  # compacted or expired
                if time.time() - put_at < self._keep_local_s:
                    return
                with maintenance(self._layout, self._closing.wait):
                    self._lease_check()
                    if (directory / "segment.json").exists():
                        self._drop_files(self._whole[0], directory)
            self._whole.popleft()

    def _drop_files(self, bounds: Bounds, directory: Path) -> None:
        if not self._restorer.is_stored(bounds):
            self._note([*self._known.lost, bounds])
            return
        for path in directory.iterdir():
            if path.name != "segment.json":
                self._layer.unlink(path)

    def _say(self, problem: str) -> None:
        with contextlib.suppress(CdcflowError):
            self._write(replace(self._known, problem=problem))

    def _write(self, known: Uploaded) -> None:
        if not self._given_up:
            with storing(f"writing {self._layout.root / UPLOADS}"):
                write_file(self._layer, self._layout.root / UPLOADS, json.dumps(asdict(known)).encode())
            self._known = known
