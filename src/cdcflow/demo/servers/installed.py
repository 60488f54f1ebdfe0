"""Checks that this machine has what the demo needs, before anything begins."""

from __future__ import annotations

from cdcflow.demo.databases import Kind


def check_installed(kind: Kind, *, with_kafka: bool, with_store: bool = False) -> None:
    """Check that the demo can start its servers: a database of this kind, Kafka and an object store if they are needed.

    Raises:
        ConfigurationError: a program is not on this machine; the message explains in one line how to get it.
    """
    # Only the chosen ones' client libraries are loaded.
    if kind == "postgres":
        from cdcflow.demo.servers import postgres

        postgres.binary_directory()
    else:
        from cdcflow.demo.servers import mysql

        mysql.find_installation(kind)
    if with_kafka:
        from cdcflow.demo.servers import kafka

        kafka.java()
        kafka.jar_folder()
    if with_store:
        from cdcflow.demo.servers import objects

        objects.program()
