"""A pipeline in a temporary folder: its settings, a database in memory instead of its source, and its tables.

    MemoryDatabase ──▶ wiring.open_source (policies, filters, …) ──▶ one attempt of the capture ──▶ log in the folder
                                                                       merge as `cdcflow merge` ──▶ tables in the folder

Everything between the database and the rows of the tables is the code that a daemon runs. Only the places differ:
source, log and warehouse. Secrets of the settings' column policies are replaced by keys that belong to tests.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa

from cdcflow import local, wiring
from cdcflow.capture.attempt import Attempt, Orders
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.plugin import SourcePlugin
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.capture.waker import Waker
from cdcflow.config import Config, FileLog
from cdcflow.config.columns import ColumnKey, TableRules
from cdcflow.daemon.merge_process import prepare_merge
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Pattern
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.sources.memory_database import number_of
from cdcflow.tables.job.failures import is_of_one_table
from cdcflow.tables.merge.contract import quarantine_of
from cdcflow.tables.paths import table_path
from cdcflow.wiring.plugged import ProgramSource

CAPTURED_WITHIN_S = 60.0
"""How long a test waits for a capture. A capture that needs more time for a test's few rows will not end at all."""


class ScratchPipeline:
    """One pipeline, with everything that it writes in a folder. Call `close` at the end; the caller removes the
    folder."""

    def __init__(self, config: Config, folder: Path, tables: Collection[TableId]) -> None:
        """`tables`: those that the source will have."""
        self.database = MemoryDatabase("test")
        self._config = _settings_in(folder, config, tables, self._open)
        self._exclusions: dict[str, str] = {}
        self._is_published = False

    def _open(self) -> MemorySource:
        return MemorySource(self.database, self._config.database.tables)

    # ── running ─────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, changes: Callable[[], None]) -> None:
        """Capture the rows that exist, call `changes`, capture the changes that it has made, and merge everything
        into the tables.

        Raises:
            CdcflowError: the capture or the merge ends with it.
        """
        self._capture(changes)
        self._merge()

    def _capture(self, changes: Callable[[], None]) -> None:
        deadline = time.monotonic() + CAPTURED_WITHIN_S
        end: int | None = None

        def is_done(attempt: Attempt) -> bool:
            nonlocal end
            if time.monotonic() > deadline:
                raise InvariantViolated(f"capturing the changes of a test takes longer than {CAPTURED_WITHIN_S:g} s")
            if not attempt.has_read_all():
                return False
            if end is None:
                changes()
                end = self.database.end
                return False
            reached = attempt.durable_position
            return reached is not None and number_of(reached) >= end

        while True:
            try:
                self._attempt(is_done)
            except TablesChanged:
                continue
            break

    def _attempt(self, is_done: Callable[[Attempt], bool]) -> None:
        settings = wiring.capture_settings(self._config)
        with (
            closing(settings.open_source()) as source,
            closing(Waker()) as waker,
            closing(settings.open_log(source.identity(), False)) as log,
        ):
            attempt = Attempt(
                source,
                log,
                log_id=log.log_id,
                epoch=log.epoch,
                limits=settings.limits,
                orders=Orders(),
                pace=settings.pace,
                requests=SimpleQueue(),
                waker=waker,
                on_event=lambda event, fields: None,
            )
            with closing(attempt):
                attempt.run(lambda: is_done(attempt))
                _check_tables(attempt.progress)

    def _merge(self) -> None:
        merge = prepare_merge(self._config, lambda text: None, lambda progress: None)
        try:
            report = merge()
        except CdcflowError as error:
            if not is_of_one_table(error):
                raise
            # Every table is excluded, and nothing is published: the error is the first one's.
            self._exclusions = {str(table): str(error) for table in self.database.tables}
            return
        self._exclusions = {t.name: t.left_out for t in report.tables if t.left_out is not None}
        self._is_published |= report.published

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def config(self) -> Config:
        """The settings with which the pipeline runs."""
        return self._config

    @property
    def exclusions(self) -> Mapping[str, str]:
        """The tables that the last merge excluded from its cut, each with the reason."""
        return self._exclusions

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows of all tables in the latest cut; empty if nothing was published."""
        found = local.read_cut(wiring.warehouse(self._config), incomplete=True) if self._is_published else {}
        kept_out = [quarantine_of(table) for table in self.database.tables if self._config.contracts]
        return found | {str(table): rows for table in kept_out if (rows := self._rows_of(table)) is not None}

    def _rows_of(self, table: TableId) -> pa.Table | None:
        """Return the rows of a table that no cut lists; `None` if it does not exist."""
        place = wiring.warehouse(self._config)
        with (
            closing(local.local_engine(place, self._config.merge.format)) as engine,
            closing(engine.table(table_path(table))) as there,
        ):
            return None if there.snapshot() is None else there.rows()


def _check_tables(progress: Progress) -> None:
    """Check that the changes of every table were captured.

    Raises:
        ConfigurationError: changes of a table were refused. (Outside of a test only that table would fail.)
    """
    for table, known in progress.tables.items():
        if known.lacks_changes:
            raise ConfigurationError(f"table {table} fails: {known.reason}", runbook="changes-refused")


def _settings_in(
    folder: Path, config: Config, tables: Collection[TableId], open_source: Callable[[], MemorySource]
) -> Config:
    """Return the settings of a pipeline in which source, log and warehouse are those of a test. Policies for a table
    that the source of the test does not have are removed: they would stop the capture."""
    given = config.database
    source = ProgramSource(
        tables=given.tables,
        backfill=given.backfill,
        plugin=SourcePlugin(ports=1, settings=ProgramSource, open=lambda settings: open_source()),
    )
    upkeep = config.merge.upkeep.model_copy(update={"every": 1e9, "after_merges": 0})
    merge = config.merge.model_copy(
        update={
            "engine": "local",
            "warehouse": folder / "warehouse",
            "objects": None,
            "catalog": None,
            "every": None,
            "memory_max": None,
            "upkeep": upkeep,
        }
    )
    return config.model_copy(
        update={
            "source": source,
            "log": FileLog(path=folder / "log"),
            "tables": {
                name: _with_test_keys(rules, folder)
                for name, rules in config.tables.items()
                if (exact := Pattern.parse(name).exact) is None or exact in tables
            },
            "merge": merge,
            "publish": None,
            "targets": {},
            "person_keys": None,  # the default is a file in the log's folder
            "service": config.service.model_copy(update={"traces": None, "notify": ()}),
        }
    )


def key_for(reference: str) -> str:
    """Return the key that replaces a reference to a secret in tests: different for each reference, and always
    the same."""
    return hashlib.sha256(f"cdcflow test {reference}".encode()).hexdigest()


def _with_test_keys(rules: TableRules, folder: Path) -> TableRules:
    columns = {}
    for name, rule in rules.columns.items():
        for kind in ("hash", "encrypt"):
            given: ColumnKey | None = getattr(rule, kind)
            if given is not None:
                key = given.model_copy(update={"key": _key_file(str(given.key), folder)})
                rule = rule.model_copy(update={kind: key})
        columns[name] = rule
    return rules.model_copy(update={"columns": columns})


def _key_file(reference: str, folder: Path) -> str:
    """Write the test's key for a secret's reference into a file. Return the reference to that file."""
    # A folder of this machine may be in the reference to a file; the name of the file is enough for a key.
    named = re.sub(r"^\$\{file:.*/", "${file:", reference)
    path = folder / "keys" / hashlib.sha256(named.encode()).hexdigest()[:16]
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(key_for(named))
    return f"${{file:{path}}}"
