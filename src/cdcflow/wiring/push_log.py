"""Opens the log of collections, with its writer and its queries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cdcflow.capture.settings import OwnedLog
from cdcflow.config import Config, FileLog, Serve
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.wiring.logs import log_layout, log_reader, open_log
from cdcflow.wiring.queries import open_for_queries

if TYPE_CHECKING:
    from cdcflow.http.consumers import ConsumerDoor
    from cdcflow.http.explorer import Explorer
    from cdcflow.log.query.consumers import Consumers
    from cdcflow.log.query.log import ChangeLog
    from cdcflow.push.schemas import CollectionShape
    from cdcflow.push.writer import CollectionWriter

KIND = "push"
OnEvent = Callable[[str, Mapping[str, object]], None]
FILES_MAX = 256
"""The limit on files of the log that one query over HTTP may read."""


class _OwnLog(FolderReader):
    """The log as its writer reads it: the writer knows the end of the log without scanning the journal."""

    def __init__(self, layout: Layout, log: OwnedLog) -> None:
        super().__init__(layout)
        self._log = log

    def newest_checkpoint(self) -> Checkpoint:
        return self._log.checkpoint


@dataclass
class Pushing:
    """The parts that `cdcflow serve` runs: the writer, not started yet, and what its API needs."""

    config: Config
    serve: Serve
    shapes: Mapping[str, CollectionShape]
    writer: CollectionWriter
    tell: OnEvent

    @cached_property
    def explorer(self) -> Explorer:
        from cdcflow.http.explorer import Explorer

        return Explorer(lambda: log_reader(self.config), asked=lambda: self._query_log)

    @cached_property
    def consumers(self) -> ConsumerDoor:
        from cdcflow.http.consumers import ConsumerDoor

        return ConsumerDoor(lambda: self._consumers, self.tell)

    @cached_property
    def _consumers(self) -> Consumers:
        return open_for_queries(self.config).consumers()

    @cached_property
    def _query_log(self) -> ChangeLog:
        return open_for_queries(self.config, files_max=FILES_MAX)


def open_push_log(config: Config, tell: OnEvent) -> Pushing:
    """Open the log of the configured collections, and create it if it does not exist.

    Raises:
        ConfigurationError: the settings have no collections, the log belongs to another kind of source, a schema cannot
            be represented, or the log's rows of a collection do not match its schema.
    """
    from cdcflow import local
    from cdcflow.log.query.log import ChangeLog
    from cdcflow.push import remembered, schemas
    from cdcflow.push import writer as writing

    serve = config.serve
    if serve is None or not isinstance(config.log, FileLog):
        raise ConfigurationError(
            "cdcflow serve needs collections that programs write to, and the settings have none",
            remedy="set serve.collections in a settings file with a separate log (docs/serve.md)",
        )
    made = [schemas.compile_schema(one.name, one.key, one.json_schema) for one in serve.collections]
    layout = log_layout(config.log)
    identity = _identity(layout)
    reader = log_reader(config)
    known = reader.table_shapes() if layout.log_json.exists() else {}
    shapes = {}
    for one in made:
        versions = known.get(one.table.id, {})
        shapes[one.name] = schemas.continue_numbers(one, [versions[number] for number in sorted(versions)])
    log = open_log(config, identity)
    try:
        asked = ChangeLog(_OwnLog(layout, log), layout, local.current_rows)
        for table in known.keys() & {*(shape.table.id for shape in shapes.values()), remembered.TABLE.id}:
            _check_whole(asked, str(table))
        memory = remembered.RememberedAnswers(serve.idempotency.age, serve.idempotency.keys)
        writer = writing.CollectionWriter(
            log,  # type: ignore[arg-type]  # a log in a folder: the settings see to it
            reader,
            asked,
            memory,
            list(shapes.values()),
            tell,
        )
    except BaseException:
        log.close()
        raise
    return Pushing(config, serve, shapes, writer, tell)


def _check_whole(log: ChangeLog, table: str) -> None:
    """Check that the log still has all rows of a collection.

    Raises:
        HistoryLost: rows of a collection have expired, and no state has them.
    """
    if lacking := log.lacks(table, log.now().offset):
        raise HistoryLost(
            f"looking for the rows of {table} in the log {log.name}: {lacking}",
            remedy="restore the expired segments from a backup, or set log.path to a new folder and write all rows",
            runbook="log-expired",
        )


def _identity(layout: Layout) -> SourceIdentity:
    """Return the identity of this log's writer, created once, with the log.

    Raises:
        ConfigurationError: another kind of source writes it.
    """
    if not layout.log_json.exists():
        return SourceIdentity(KIND, uuid.uuid4().hex, "collections")
    found = layout.log_file().source
    if found.kind != KIND:
        raise ConfigurationError(
            f"opening the log {layout.root} for collections: a capture from {found.kind} writes it, and a log has one"
            " writer",
            remedy="set log.path in the settings of `cdcflow serve` to a separate folder",
            runbook="other-log",
        )
    return found
