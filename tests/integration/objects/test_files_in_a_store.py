"""The source of files reads the objects of a bucket: each once, and again when it changes."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from captured_files import CapturedFiles
from tests.servers.objects import ACCESS_VARIABLE, SECRET_VARIABLE, ObjectServer
from tests.support.polling import wait_until

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.polled import Changing
from cdcflow.stores.bucket import Bucket
from cdcflow_files import StoredFiles

_buckets = count(1)


@pytest.fixture
def bucket(object_server: ObjectServer) -> Bucket:
    return Bucket(object_server.objects(f"landing-{next(_buckets)}"))


def settings_of(server: ObjectServer, bucket: Bucket) -> dict[str, str]:
    return {
        "url": bucket.name,
        "endpoint": server.endpoint,
        "access_key": f"${{env:{ACCESS_VARIABLE}}}",
        "secret_key": f"${{env:{SECRET_VARIABLE}}}",
    }


def test_objects_of_a_bucket_become_rows(object_server: ObjectServer, bucket: Bucket, tmp_path: Path) -> None:
    """In the order in which they were written; names of unfinished files are not read; a changed object is its
    differences."""
    bucket.put("_other/x.csv", b"n\n9\n")
    files = CapturedFiles(tmp_path / "state", store=settings_of(object_server, bucket), keys={"files.orders": ["id"]})
    bucket.put("orders/b.csv", b"id,n\n1,10\n2,20\n")
    bucket.put("orders/_temporary/0/c.csv", b"id,n\n7,7\n")
    bucket.put("names.jsonl", b'{"name": "one"}\n')
    files.poll()
    bucket.put("orders/b.csv", b"id,n\n1,10\n2,21\n")
    files.poll()
    found = files.changes()
    assert sorted(found[:3], key=str) == [
        ("c names", {"name": "one"}),
        ("c orders", {"id": 1, "n": 10}),
        ("c orders", {"id": 2, "n": 20}),
    ]
    assert found[3:] == [("u orders", {"id": 2, "n": 21})]
    assert [(f.level, f.subject) for f in files.source.doctor() if f.subject == "source.store"] == [
        ("ok", "source.store")
    ]


def test_object_that_changes_while_it_is_read_is_read_later(
    object_server: ObjectServer, bucket: Bucket, tmp_path: Path
) -> None:
    """What was listed is what is stored."""
    files = CapturedFiles(tmp_path / "state", store=settings_of(object_server, bucket))
    assert files.settings.store is not None
    bucket.put("a.csv", b"n\n1\n")
    (item,) = StoredFiles(files.settings, files.settings.store).items()
    bucket.put("a.csv", b"n\n1\n2\n")
    with pytest.raises(Changing):
        item.read({})
    bucket.delete(["a.csv"])
    with pytest.raises(Changing):
        item.read({})


def test_store_that_does_not_answer_is_an_outage(tmp_path: Path) -> None:
    """The capture waits and tries again; without a right or a bucket, the remedy names the plug-in's settings."""
    with ObjectServer() as server:
        bucket = Bucket(server.objects("landing"))
        files = CapturedFiles(tmp_path / "state", store=settings_of(server, bucket))
        assert files.settings.store is not None
        missing = files.settings.store.model_copy(update={"url": "s3://no-such-bucket/x"})
        (finding,) = StoredFiles(files.settings, missing).doctor()
        assert (finding.level, finding.subject) == ("error", "source.store")
        assert "log.objects" not in f"{finding.text} {finding.remedy}"
        server.kill()
        with pytest.raises(SourceUnavailable):
            files.source.poll_now()
        server.start()
        bucket.put("a.csv", b"n\n1\n")

        def polled() -> bool:
            files.source.poll_now()
            return bool(files.source.tables())

        wait_until(polled, "the object to be found")
