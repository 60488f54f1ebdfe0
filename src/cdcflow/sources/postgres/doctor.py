"""What stands in the way of a capture, each with the SQL that mends it."""

from __future__ import annotations

from cdcflow.config import Postgres
from cdcflow.ports import Finding
from cdcflow.sources.postgres.connection import Connector
from cdcflow.sources.postgres.patterns import Selection


def findings(connector: Connector, settings: Postgres, selection: Selection) -> list[Finding]:
    """Look at everything that can be looked at; nothing is changed."""
    raise NotImplementedError
