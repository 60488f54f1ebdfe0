"""Names that programs import stay, wherever the modules are."""

from __future__ import annotations

import importlib

import pytest

EARLIER = [
    ("cdcflow.changelog.feed", "feed"),
    ("cdcflow.changelog.feed", "feed_schema"),
    ("cdcflow.changelog.layout", "Layout"),
    ("cdcflow.changelog.moments", "offset_before"),
    ("cdcflow.changelog.moments", "offset_of_cut"),
    ("cdcflow.changelog.moments", "offset_of_position"),
    ("cdcflow.changelog.moments", "sealed_checkpoint"),
    ("cdcflow.changelog.reader", "list_segments"),
    ("cdcflow.changelog.reader", "newest_checkpoint"),
    ("cdcflow.changelog.reader", "read_rows"),
    ("cdcflow.changelog.reader", "read_transactions"),
    ("cdcflow.changelog.reader", "table_shapes"),
    ("cdcflow.ports.chunks", "ChunkSource"),
    ("cdcflow.ports.log", "Log"),
    ("cdcflow.ports.source", "Source"),
    ("cdcflow.ports.stream", "Stream"),
    ("cdcflow.query.common", "Common"),
    ("cdcflow.query.common", "Reached"),
    ("cdcflow.query.consuming", "Batch"),
    ("cdcflow.query.consuming", "Consumer"),
    ("cdcflow.query.several", "Batch"),
    ("cdcflow.query.several", "Logs"),
]
"""Where the API reference of version 0.1.0 had them."""

PUBLIC = [
    ("cdcflow", "open"),
    ("cdcflow", "open_logs"),
    ("cdcflow", "__version__"),
    ("cdcflow.config", "Config"),
    ("cdcflow.config", "load"),
    *(("cdcflow.local", name) for name in ("merge", "merge_logs", "read_cut", "read_live")),
    *(("cdcflow.spark", name) for name in ("session", "merge", "merge_logs", "merge_stream", "read_cut", "read_live")),
    *(("cdcflow.spark", name) for name in ("published_cut", "register", "read_log", "read_logs")),
    *(("cdcflow.spark.jars", name) for name in ("OWN_JAR", "iceberg_jars", "jars")),
    ("cdcflow.spark.kafka", "merge"),
    ("cdcflow.spark.job", "main"),
    ("cdcflow.spark.session", "session"),
    *(("cdcflow.wiring", name) for name in ("capture", "log_layout", "sealed_layout_of", "tier", "warehouse")),
    *(("cdcflow.ports", name) for name in ("ChunkSource", "Log", "LogReader", "Source", "Spool", "Stream", "Tier")),
    ("cdcflow.testing.sinks", "SinkContract"),
    ("cdcflow.cli.__main__", "main"),
]


@pytest.mark.parametrize(("module", "name"), [*PUBLIC, *EARLIER], ids=str)
def test_programs_find_a_public_name(module: str, name: str) -> None:
    """A program that was written for one version must start with the next one."""
    assert hasattr(importlib.import_module(module), name)
