"""A server's answers about its variables, and which of them prevent a capture."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql import binlog_status, doctor
from cdcflow.sources.mysql.position import BinlogFile

GOOD = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_metadata": "FULL", "version": "12.3.1-MariaDB"}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a server that the tests do not run: MariaDB 12.3."""
    found = dict(GOOD)
    monkeypatch.setattr(
        doctor, "variables", lambda _connection, *names: {name: found[name] for name in names if name in found}
    )
    monkeypatch.setattr(binlog_status, "end", lambda *_: binlog_status.BinlogEnd(BinlogFile("binlog.000001"), 4, ""))
    return found


def check() -> None:
    connection: Any = None  # it is not queried: the answers are above
    settings = MySQL.model_validate(
        {"kind": "mariadb", "url": "mysql://a@b/", "tables": ["a.*"], "tls": {"mode": "off"}}
    )
    doctor.check(connection, settings)


def test_binary_log_inside_innodb_is_refused_at_the_start(answers: dict[str, str]) -> None:
    """Its events have neither file nor byte offset, which every position of cdcflow consists of."""
    check()
    answers["binlog_storage_engine"] = ""
    check()
    answers["binlog_storage_engine"] = "innodb"
    with pytest.raises(ConfigurationError, match="binlog_storage_engine is innodb") as caught:
        check()
    assert "take binlog_storage_engine out of the server's configuration, and restart it" in (caught.value.remedy or "")


def test_row_events_in_fragments_are_refused_at_the_start(answers: dict[str, str]) -> None:
    """An error found in the stream stays there; one statement fixes what is found at the start."""
    answers["binlog_row_event_fragment_threshold"] = "1073741824"
    check()
    answers["binlog_row_event_fragment_threshold"] = "16777216"
    with pytest.raises(ConfigurationError, match="binlog_row_event_fragment_threshold is 16777216") as caught:
        check()
    assert "SET GLOBAL binlog_row_event_fragment_threshold = 1073741824" in (caught.value.remedy or "")
