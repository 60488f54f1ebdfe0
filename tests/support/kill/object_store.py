"""Processes that work on a log with an object store and kill themselves before their COUNT-th step.

A line on stdin is [ROOT, OBJECTS, WORK, COUNT] as JSON; a child is forked for it, and its exit status is answered. WORK
is `upload`, `keep` (compact, then expire), `join` (as the daemon compacts), `expire` (in the folder alone) or `expire
there` (in both). A step is anything that changes something: a request that writes or removes, and each rename, removal
and new file on disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.objects.logs import ObjectLog

from cdcflow.config import Objects
from cdcflow.log.disk.layer import OsLayer
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.notes import Note
from cdcflow.log.maintenance.background_compaction import BackgroundCompaction
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.stores.bucket import Bucket

STEPS: list[tuple[Any, str]] = [(Bucket, "put_new"), (Bucket, "put"), (Bucket, "delete")]
STEPS += [(OsLayer, name) for name in ("rename", "unlink", "rmdir", "mkdir", "create")]
left = -1
counted_thread = "MainThread"


def arm(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        global left
        if threading.current_thread().name == counted_thread:
            left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def work(root: str, objects: str, kind: str, count: int) -> None:
    global left, counted_thread
    log = ObjectLog(Path(root), Objects.model_validate_json(objects))
    for owner, name in STEPS:
        arm(owner, name)
    left = count
    if kind == "upload":
        counted_thread = "cdcflow-upload"
        opened = log.open()
        log.settled()
        opened.close()
    elif kind == "expire":
        LogRetention(Layout(log.root)).expire(ExpiryRule(before_cut=2))
    elif kind == "expire there":
        log.retention().expire(ExpiryRule(before_cut=2))
    elif kind == "join":
        notes.write(log.layout, Note("merge", "/warehouse", log.layout.segment_offsets()[-1][1]))
        remote = RemoteBucket(log.bucket)
        BackgroundCompaction(log.layout, lambda *_: None, remote=remote, grace_s=0).step()
    else:
        log.retention().compact()
        log.retention().expire(ExpiryRule(before_cut=3))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.dup2(2, 1)  # what is logged is no answer
            try:
                work(*json.loads(line))
            except BaseException as error:  # noqa: BLE001 - a child must never continue as its parent
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
