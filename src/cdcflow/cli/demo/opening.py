"""Which room of the demo a database and a log are in. Only the chosen ones' client libraries are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.cli.demo.databases import Kind, Session, Source
from cdcflow.cli.demo.logs import Place


def check_installed(kind: Kind, log: Place) -> None:
    """That the demo can start its servers.

    Raises:
        ConfigurationError: a program is not on this machine; the message says in one line how to get it.
    """
    if kind == "postgres":
        from cdcflow.cli.demo.servers import postgres

        postgres.installed()
    else:
        from cdcflow.cli.demo.servers import mysql

        mysql.installed(kind)
    if log == "kafka":
        from cdcflow.cli.demo.servers import kafka

        kafka.java()
        kafka.installed()


def opened(kind: Kind) -> Source:
    """A server of this kind, not started yet."""
    if kind == "postgres":
        from cdcflow.cli.demo.postgres import Postgres

        return Postgres()
    from cdcflow.cli.demo.mysql import MySQL

    return MySQL(kind)


def session(url: str, password: str | None = None) -> Session:
    """A session of the writer."""
    if url.startswith("postgres"):
        from cdcflow.cli.demo.postgres import PostgresSession

        return PostgresSession(url, password)
    from cdcflow.cli.demo.mysql import MySQLSession

    return MySQLSession(url, password)


def seed(url: str, password: str | None, rows_max: int | None) -> Mapping[str, int]:
    """Create and fill the tables at this address. Returns the rows of each table; none if they are there already."""
    if url.startswith("postgres"):
        from cdcflow.cli.demo import postgres

        return postgres.seed(url, password, rows_max)
    from cdcflow.cli.demo import mysql

    return mysql.seed(url, password, rows_max)
