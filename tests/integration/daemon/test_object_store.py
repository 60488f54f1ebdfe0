"""The whole daemon with an object store: killed while it uploads, the store killed while it captures."""

from __future__ import annotations

import signal

from tests.servers.objects import ObjectServer
from tests.support.daemon.bank import Bank

from cdcflow.log.files.layout import Layout
from cdcflow.log.read import reader
from cdcflow.log.read.folder import FolderReader
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploaded import status
from cdcflow.stores.bucket import Bucket


def test_bucket_alone_equals_the_source_whichever_process_was_killed(
    bank: Bank, own_object_server: ObjectServer
) -> None:
    """What the warehouse is built from years later is the bucket, and nothing else is left to compare it with."""
    objects = own_object_server.objects("shop", "log", keep_local="0s")
    bank.log_settings |= {"objects": {k: v for k, v in objects.model_dump(mode="json").items() if v is not None}}
    bank.configure()
    bank.start_writing(seed=7)
    daemon = bank.daemon("before:upload", "9")
    assert daemon.wait(timeout=60) == -signal.SIGKILL, bank.output()
    daemon = bank.daemon()
    bank.wait_until(lambda: int(str(status(Layout(bank.log))["upload_offset"])) > 0, "an upload", daemon)
    if own_object_server.is_real:
        own_object_server.kill()
        problem = "upload_problem"
        bank.wait_until(lambda: bool(status(Layout(bank.log))[problem]), "the upload to be postponed", daemon)
        own_object_server.start()
    bank.stop_writing()
    bank.catch_up_and_stop(daemon)
    daemon = bank.daemon()  # what the last one had no time to upload
    bank.wait_until(lambda: status(Layout(bank.log))["upload_waiting_segments"] == 0, "all uploads", daemon)
    bank.catch_up_and_stop(daemon)
    bank.wait_until(lambda: status(Layout(bank.log))["upload_waiting_segments"] == 0, "all uploads")
    alone = Layout(bank.folder / "nothing", BucketStore(Bucket(objects), bank.folder / "cache", 1 << 24))
    assert len(reader.list_segments(alone)) > 1
    bank.assert_log_equals_source(FolderReader(alone))
