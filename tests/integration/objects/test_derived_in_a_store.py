"""Derived tables in a bucket: the same as in a folder."""

from __future__ import annotations

import random
from pathlib import Path

from tests.integration.local.test_derived_tables import Tables, expected, found, queries
from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.tables.paths import Warehouse


def test_derived_tables_in_a_bucket_are_what_their_queries_give(object_server: ObjectServer, tmp_path: Path) -> None:
    """Versions, deleted rows and commits of a store have other code than those of a folder."""
    objects = object_server.objects("derived", "log")
    address = objects.model_copy(update={"url": "s3://derived/ware"}).address("derived")
    warehouse = Warehouse("s3a://derived/ware", address)
    log = HandLog(tmp_path / "log")
    tables, names = Tables(log, random.Random(4)), ("groups", "left join", "first of each")
    for _ in range(4):
        tables.change()
        local.merge(log.root, warehouse, policies=queries(*names))
        assert found(warehouse) == expected(tables, names)
