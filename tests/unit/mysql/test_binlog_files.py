"""Sizes of the binary log's files, as positions in them."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition


def test_positions_do_not_count_the_header_of_an_encrypted_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader at the end would always seem to lag by it, and a position beyond the end to be one that exists.
    MySQL 9.7 listed these rows while its log ended at byte 2988; MariaDB lists no third column."""
    rows: list[tuple[object, ...]] = [("log.1", 181, "No"), ("log.2", 3500, "Yes"), ("log.3", 512)]
    monkeypatch.setattr(binlog_status, "query", lambda connection, statement: rows)
    connection: Any = None
    found = binlog_status.files(connection)
    assert found == [(BinlogFile("log.1"), 181), (BinlogFile("log.2"), 2988), (BinlogFile("log.3"), 512)]
    assert binlog_status.bytes_behind(found[:2], BinlogPosition(BinlogFile("log.2"), 2988)) == 0
