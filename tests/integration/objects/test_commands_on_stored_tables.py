"""The commands on tables in a bucket, of a log in a bucket, without Spark."""

from __future__ import annotations

import importlib
import json
import threading
from itertools import count
from pathlib import Path

import pytest
import yaml
from tests.servers.objects import ObjectServer
from tests.support.objects.logs import put_away
from tests.support.objects.store_proxy import StoreProxy
from tests.support.objects.stored_lakes import Changing, StoredLake
from typer.testing import CliRunner

from cdcflow import local, wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.daemon.http_component import Surroundings
from cdcflow.model.table import TableId
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.paths import Warehouse
from cdcflow.wiring import plans

_buckets = count(1)


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    found = Changing(tmp_path / "made")
    for _ in range(3):
        found.segment()
    return found


def said(config: Path, *command: str, status: int = 0) -> str:
    ran = CliRunner().invoke(app, [*command, "-c", str(config)])
    assert ran.exit_code == status, ran.output
    return ran.output


@pytest.mark.spread(1)
@pytest.mark.parametrize("engine", ["auto", "local"])
def test_tables_in_a_bucket_need_no_spark(
    object_server: ObjectServer, tmp_path: Path, changing: Changing, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a machine that has nothing of the log or the tables: merge, cuts, their SQL, an explanation, maintenance,
    the live view, and a rebuild into another bucket. `s3://` and `s3a://` name the same tables."""
    # The package has a function of that name, too.
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", None)
    bucket = f"commands-{next(_buckets)}"
    objects = object_server.objects(bucket, "log")
    put_away(changing.log.root, Bucket(objects))
    stored = {k: v for k, v in objects.model_dump(mode="json").items() if v is not None}
    access = {k: stored[k] for k in ("endpoint", "access_key", "secret_key")}
    config = tmp_path / "cdcflow.yaml"
    settings = {
        "source": {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/shop"},
        "log": {"objects": {**stored, "cache": str(tmp_path / "cache")}},
        "merge": {"engine": engine, "warehouse": f"s3://{bucket}/ware", "objects": access, "keep": "7d"},
    }
    config.write_text(yaml.safe_dump(settings))
    assert "cut 3" in said(config, "merge")
    with StoreProxy(object_server.port) as proxy:
        place = StoredLake(object_server, bucket, proxy).direct
        assert str(place.root).startswith("s3a://")
        assert changing.check(place) == 3
    changing.segment()
    put_away(changing.log.root, Bucket(objects))
    live = local.read_live(wiring.sealed_layout(load(config)), wiring.warehouse(load(config)))
    assert live.cut == 4
    assert sorted(live["public.keyed"].column("id").to_pylist()) == [1, 2, 3, 4]
    assert [one["cut"] for one in json.loads(said(config, "cuts", "--json"))] == [3]
    assert f"delta.`s3a://{bucket}/ware/public/keyed` VERSION AS OF" in said(config, "cuts", "--sql")
    assert "which cut 3 shows" in said(config, "explain", "public.keyed")
    unknown = TableId("public", "unknown")
    assert plans.merged_tables(load(config), [t.id for t in changing.tables] + [unknown]) == frozenset(
        t.id for t in changing.tables
    )
    said(config, "upkeep")
    said(config, "rebuild", "--into", f"s3a://{bucket}/again")
    again = Warehouse(f"s3a://{bucket}/again", place.store)
    assert changing.check(again) == 4


def test_page_shows_the_latest_merges_into_a_bucket(
    object_server: ObjectServer, tmp_path: Path, changing: Changing
) -> None:
    """From what the merges wrote into the log's folder: a page must not wait for a store."""
    objects = object_server.objects(f"commands-{next(_buckets)}").model_dump(mode="json", exclude_none=True)
    config = tmp_path / "cdcflow.yaml"
    access = {k: objects[k] for k in ("endpoint", "access_key", "secret_key")}
    settings = {
        "source": {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/shop"},
        "log": {"path": str(changing.log.root)},
        "merge": {"engine": "local", "warehouse": f"{objects['url']}/ware", "objects": access},
    }
    config.write_text(yaml.safe_dump(settings))
    page = Surroundings(lambda: load(config), list)
    assert page.overview({})["merges"] is None
    said(config, "merge")
    changing.segment()
    said(config, "merge")
    said(config, "merge")
    page = Surroundings(lambda: load(config), list)
    merges = page.overview({})["merges"]
    assert [(one["cut"], one["tables"], one["incomplete"], one["left_out"]) for one in merges] == [
        (4, 2, [], {}),
        (3, 2, [], {}),
    ]
    config.write_text(config.read_text().replace("/ware", "/other"))
    assert Surroundings(lambda: load(config), list).overview({})["merges"] is None


def test_reading_a_bucket_leaves_no_thread(object_server: ObjectServer, changing: Changing) -> None:
    """A notebook that reads cuts for days would collect eight threads for each."""
    with StoreProxy(object_server.port) as proxy:
        place = StoredLake(object_server, f"commands-{next(_buckets)}", proxy).direct
        before = set(threading.enumerate())  # other tests may have left some
        for _ in range(3):
            changing.segment()
            local.merge(changing.log.root, place, table_format="delta")
            local.read_cut(place)
            left = [one.name for one in threading.enumerate() if one not in before and "cdcflow store" in one.name]
            assert not left
