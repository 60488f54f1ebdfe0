"""The commit clock of an idle MySQL or MariaDB advances by heartbeats, also where cdcflow may not write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase
from tests.support.capture.idle_clock import check_idle_clock

pytestmark = pytest.mark.mysql

NOW = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


@pytest.mark.spread(2)
@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_idle_source_lets_readers_of_several_logs_continue(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, fence: str
) -> None:
    """G34: by the commit time of a mark's row; or by the server's clock, asked for before the log's end is. MariaDB's
    commit times are whole seconds."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = {
        "kind": flavor,
        "url": mysql_database.url,
        "tables": [f"{mysql_database.name}.t"],
        "fence": fence,
        "tls": {"mode": "off"},
    }
    check_idle_clock(
        tmp_path,
        source,
        f"{mysql_database.name}.t",
        lambda n: mysql_database.execute(f"INSERT INTO t VALUES ({n})"),
        lambda: int(mysql_database.execute(NOW)[0][0]),
        1_000_000 if flavor == "mariadb" else 0,
    )
