"""Measures how busy a MySQL or MariaDB server is.

A server does not know how far its replicas lag, so cdcflow queries each replica that the settings name. A replica
reports the lag of the transaction that it executes now (`Seconds_Behind_Source`): 0 while its receiver is cut off, so
both threads must run.
"""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from cdcflow.config import MySQL
from cdcflow.model.position import Token
from cdcflow.model.source_load import Gauge, LoadLimits
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.load import Reading, SqlProbe, Unknown
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.mysql.connection import Connection, Connector, account_of, query
from cdcflow.sources.mysql.errors import DENIED, parts
from cdcflow.sources.mysql.marks import WrittenMarks

_LOCK_WAITS = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
_HISTORY = (
    "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len' AND STATUS = 'enabled'"
)
_HISTORY_OF_MARIADB = (
    "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_history_list_length'"
)
_MAY_NOT = DENIED | {1227}
_TEXT_OF_PROBE = Token("probe")


def source_probe(settings: MySQL, secret: Secret, limits: LoadLimits, slot: str) -> MySQLProbe:
    """Return a probe that measures the gauges that have a limit. It connects at the first query.

    `slot`: the name of the log's marks, which the probe's commits must not touch.
    """
    return MySQLProbe(settings, secret, limits, slot)


class MySQLProbe(SqlProbe[Connection]):
    """A `SourceProbe` that also has connections to the replicas, and closes them."""

    def __init__(self, settings: MySQL, secret: Secret, limits: LoadLimits, slot: str) -> None:
        connector = Connector(settings, secret)
        self._replicas = [Replica(settings, secret, url) for url in settings.backfill.limits.replicas]
        marks = WrittenMarks(table_id(settings.marks_table), slot).of_probe()
        readings: dict[Gauge, Reading[Connection]] = {
            "replica_lag": lambda _: max(replica.lag_s() for replica in self._replicas),
            "lock_waits": lambda c: _number(c, _LOCK_WAITS),
            "history_list_length": history_list_length,
        }
        super().__init__(
            connector,
            lambda: connector.connect("load"),
            limits,
            readings,
            lambda c: marks.write(c, _TEXT_OF_PROBE),
        )

    def close(self) -> None:
        super().close()
        for replica in self._replicas:
            replica.close()


class Replica:
    """A replica of the source, under the same user and password."""

    def __init__(self, settings: MySQL, secret: Secret, url: str) -> None:
        self._connector = connector = Connector(settings.model_copy(update={"url": url}), secret)
        self._session: Session[Connection] = Session(connector, lambda: connector.connect("replica lag"))

    def lag_s(self) -> float:
        """Return the replica's lag, in seconds.

        Raises:
            Unknown: the replica does not replicate, or a right is missing.
            SourceUnavailable: the replica does not answer.
        """
        where = f"the replica {self._connector.address}"
        return self._session.ask(f"measuring the lag of {where}", lambda c: _lag_of(c, where))

    def close(self) -> None:
        self._connector.close()
        self._session.close()


def _lag_of(connection: Connection, where: str) -> float:
    try:
        status = replica_status(connection)
    except pymysql.Error as error:
        if parts(error)[0] not in _MAY_NOT:
            raise
        right = "REPLICA MONITOR" if "MariaDB" in connection.get_server_info() else "REPLICATION CLIENT"
        raise Unknown(f"{where}: run GRANT {right} ON *.* TO {account_of(connection)}") from None
    if not status:
        raise Unknown(f"{where} is no replica; correct source.backfill.limits.replicas")
    lags = [_of_channel(one) for one in status]
    if None in lags:
        raise Unknown(f"{where} does not replicate; start it, or remove it from source.backfill.limits.replicas")
    return max(lag for lag in lags if lag is not None)


def _of_channel(status: dict[str, Any]) -> float | None:
    """Return the lag of one channel; None if one of its threads does not run."""
    runs = status.get("Replica_IO_Running") == "Yes" and status.get("Replica_SQL_Running") == "Yes"
    lag = status.get("Seconds_Behind_Source")
    return float(lag) if runs and lag is not None else None


def replica_status(connection: Connection) -> list[dict[str, Any]]:
    """Return the rows of SHOW REPLICA STATUS, one for each channel, with the newer names of its columns.

    Since 8.4 MySQL does not know the statement's older name, and MariaDB 10.4 does not know the newer one.
    """
    statement = "SHOW ALL SLAVES STATUS" if "MariaDB" in connection.get_server_info() else "SHOW REPLICA STATUS"
    with connection.cursor(DictCursor) as cursor:
        try:
            cursor.execute(statement)
        except pymysql.err.ProgrammingError:  # MySQL before 8.0.22
            cursor.execute("SHOW SLAVE STATUS")
        return [
            {name.replace("Slave", "Replica").replace("Master", "Source"): value for name, value in channel.items()}
            for channel in cursor.fetchall()
        ]


def history_list_length(connection: Connection) -> float:
    """Return how many transactions' old row versions InnoDB keeps, because some snapshot may need them."""
    is_mariadb = "MariaDB" in connection.get_server_info()
    return _number(connection, _HISTORY_OF_MARIADB if is_mariadb else _HISTORY)


def _number(connection: Connection, statement: str) -> float:
    try:
        rows = query(connection, statement)
    except pymysql.Error as error:
        if parts(error)[0] not in _MAY_NOT:
            raise
        raise Unknown(f"run GRANT PROCESS ON *.* TO {account_of(connection)}") from None
    if not rows:
        raise Unknown("the counter is disabled; run SET GLOBAL innodb_monitor_enable = 'trx_rseg_history_len'")
    return float(rows[0][0])
