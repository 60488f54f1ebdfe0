"""What the demo needs on this machine, looked for before anything begins."""

from __future__ import annotations

from cdcflow.cli.demo.databases import Kind


def check_installed(kind: Kind, *, with_kafka: bool) -> None:
    """That the demo can start its servers: a database of this kind, and Kafka where the log is to be there.

    Raises:
        ConfigurationError: a program is not on this machine; the message says in one line how to get it.
    """
    # Only the chosen ones' client libraries are loaded.
    if kind == "postgres":
        from cdcflow.cli.demo.servers import postgres

        postgres.installed()
    else:
        from cdcflow.cli.demo.servers import mysql

        mysql.installed(kind)
    if with_kafka:
        from cdcflow.cli.demo.servers import kafka

        kafka.java()
        kafka.installed()


__all__ = ["check_installed"]
