"""Chooses the demo's module for a database. Only the chosen one's client library is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.demo.databases import DemoSession, DemoSource, Kind


def demo_source(kind: Kind) -> DemoSource:
    """Return a server of this kind, not started yet."""
    if kind == "postgres":
        from cdcflow.demo.postgres import Postgres

        return Postgres()
    from cdcflow.demo.mysql import MySQL

    return MySQL(kind)


def session(url: str, password: str | None = None) -> DemoSession:
    """Return a session of the writer."""
    if url.startswith("postgres"):
        from cdcflow.demo.postgres import PostgresSession

        return PostgresSession(url, password)
    from cdcflow.demo.mysql import MySQLSession

    return MySQLSession(url, password)


def seed(url: str, password: str | None, rows_max: int | None) -> Mapping[str, int]:
    """Create and fill the tables at this address. Return the rows of each table; empty if they exist already."""
    if url.startswith("postgres"):
        from cdcflow.demo import postgres

        return postgres.seed(url, password, rows_max)
    from cdcflow.demo import mysql

    return mysql.seed(url, password, rows_max)
