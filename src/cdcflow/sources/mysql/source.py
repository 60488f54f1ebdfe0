"""MySQL and MariaDB behind `cdcflow.ports.Source`."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.config import MySQL
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table
from cdcflow.ports import ChunkSource, Finding, OpenSpool, SourceStatus, Stream
from cdcflow.sources.mysql.connection import Connector, Secret


class MySQLSource:
    """Implements `cdcflow.ports.Source`. Nothing is connected before it is asked something."""

    def __init__(self, settings: MySQL, secret: Secret) -> None:
        self._settings = settings
        self._connector = Connector(settings, secret)

    def identity(self) -> SourceIdentity:
        raise NotImplementedError

    def prepare(self, checkpoint: Checkpoint, log_id: str) -> Checkpoint:
        raise NotImplementedError

    def tables(self) -> Sequence[Table]:
        raise NotImplementedError

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        raise NotImplementedError

    def chunks(self) -> ChunkSource:
        raise NotImplementedError

    def doctor(self) -> Sequence[Finding]:
        raise NotImplementedError

    def status(self, acknowledged: Position | None) -> SourceStatus:
        raise NotImplementedError

    def close(self) -> None:
        self._connector.close()
