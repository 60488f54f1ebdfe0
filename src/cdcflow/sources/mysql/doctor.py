"""What stands in the way of a capture, each with the SQL that mends it. Nothing is changed."""

from __future__ import annotations

from cdcflow.config import MySQL
from cdcflow.ports import Finding
from cdcflow.sources.mysql.catalog import Catalog
from cdcflow.sources.mysql.connection import Connector


def findings(connector: Connector, settings: MySQL, catalog: Catalog) -> list[Finding]:
    raise NotImplementedError
