"""How long Amazon RDS and Aurora keep the binary log, emulated by the table that only they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.capture.ports.findings import Finding
from cdcflow.config import Config
from cdcflow.model.log_budget import LogLimit
from cdcflow.wiring import log_limits

pytestmark = pytest.mark.mysql


@pytest.fixture
def configured(mysql_database: MySQLDatabase) -> Iterator[MySQLDatabase]:
    """A server with RDS's table of settings."""
    mysql_database.execute(
        "CREATE TABLE mysql.rds_configuration (name varchar(100), value varchar(100), description varchar(300))",
        "CREATE TABLE t (id int PRIMARY KEY)",
    )
    yield mysql_database
    mysql_database.execute("DROP TABLE mysql.rds_configuration")


def found(database: MySQLDatabase, make_capture: MakeMySQLCapture) -> Finding:
    findings: list[Finding] = list(make_capture(database).source.doctor())
    return next(f for f in findings if f.subject == "binary log")


def test_retention_is_the_one_configured_at_the_service(
    configured: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """There `binlog_expire_logs_seconds` decides nothing: "kept for 30 days" was true of no file."""
    assert "purges the binary log as soon as" in found(configured, make_capture).text
    configured.execute("INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL, '')")
    missing = found(configured, make_capture)
    assert missing.level == "warning"
    assert missing.sql == ("CALL mysql.rds_set_configuration('binlog retention hours', 168)",)
    configured.execute("UPDATE mysql.rds_configuration SET value = '5'")
    assert found(configured, make_capture).level == "warning"
    configured.execute("UPDATE mysql.rds_configuration SET value = '168'")
    assert (found(configured, make_capture).level, "168 hours" in found(configured, make_capture).text) == ("ok", True)


def test_other_servers_have_their_own_setting(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """A service that is recognised by its table must not be detected where the table does not exist."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert "RDS" not in found(mysql_database, make_capture).text


def test_limits_of_the_binary_log_are_named(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """A plan compares them with the time of a backfill; an operator raises what is named."""
    server = mysql_database.server
    source = {"kind": server.flavor, "url": server.url(), "tables": ["*.*"], "log_budget_age": "1h"}
    config = Config.model_validate({"source": {**source, "tls": {"mode": "off"}}, "log": {"path": str(tmp_path)}})
    (before,) = server.execute("SELECT @@GLOBAL.binlog_expire_logs_seconds")
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 7200")
    try:
        assert log_limits(config) == (
            LogLimit("source.log_budget_age", age_s=3600.0),
            LogLimit("binlog_expire_logs_seconds", age_s=7200.0),
        )
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 0")
        assert log_limits(config) == (LogLimit("source.log_budget_age", age_s=3600.0),)
        server.execute(
            "CREATE TABLE mysql.rds_configuration (name varchar(100), value varchar(100), description varchar(300))",
            "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', '5', '')",
        )
        assert LogLimit("binlog retention hours", age_s=18_000.0) in (log_limits(config) or ())
    finally:
        server.execute(
            "DROP TABLE IF EXISTS mysql.rds_configuration", f"SET GLOBAL binlog_expire_logs_seconds = {before[0]}"
        )
