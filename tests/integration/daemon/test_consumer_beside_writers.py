"""A consumer of a log that a daemon writes: during the backfill, while writers write, across a kill of the daemon."""

from __future__ import annotations

import itertools

import pytest
from tests.support.daemon.bank import Bank

import cdcflow
from cdcflow.log.fold.fold import FoldedRow, Key, fold
from cdcflow.log.query.consumer import Batch
from cdcflow.model.table import TableId
from cdcflow.testing.folded import changes_of

pytestmark = pytest.mark.postgres


class Store:
    """Rows of tables, and the cursor up to which they were read."""

    def __init__(self) -> None:
        self.rows: dict[TableId, dict[Key, FoldedRow]] = {}
        self.cursor: str | None = None

    def take(self, batch: Batch) -> None:
        shape, before = batch.shape, self.rows.get(batch.shape.id, {})
        changes = changes_of(shape, batch.rows)
        self.rows[shape.id] = fold(before, changes, shape.key_columns, keyed=bool(shape.key))
        self.cursor = batch.cursor


@pytest.mark.long
def test_consumers_store_equals_the_source(bank: Bank) -> None:
    """One begins while the tables are being read at the source, one after that; both read in short ranges, starting at
    the cursor that is stored with their result, and end with exactly the source's rows.
    """
    bank.start_writing(7)
    daemon = bank.daemon()
    try:
        bank.wait_until(
            lambda: bank.reader.exists() and bool(bank.reader.table_shapes()), "the log to have rows", daemon
        )
        early, late = Store(), Store()
        stretch(bank, "early", early, 3)
        bank.wait_until(lambda: bank.has_reached(""), "the backfill", daemon)
        for number in range(3):
            stretch(bank, "early", early, 5 + number)
            stretch(bank, "late", late, 2 + number)
            if number == 1:
                daemon.kill()
                daemon.wait()
                daemon = bank.daemon()
        bank.stop_writing()
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence", daemon)
        for name, store in (("early", early), ("late", late)):
            stretch(bank, name, store, None)
            for table in bank.tables:
                assert bank.logged_rows(table, store.rows) == bank.source_rows(table), (name, table)
        listed = cdcflow.open(bank.config_path).consumers().list_consumers()
        assert [(one.state.name, one.state.is_in_backfill, one.held_by) for one in listed] == [
            ("early", False, None),
            ("late", False, None),
        ]
    finally:
        daemon.kill()
        daemon.wait()


def stretch(bank: Bank, name: str, store: Store, batches: int | None) -> None:
    """Read this many more batches (`None`: up to the log's end)."""
    with cdcflow.open(bank.config_path).consumer(name, batch_rows=700) as consumer:
        for number, batch in enumerate(itertools.islice(consumer.read(store.cursor), batches)):
            store.take(batch)
            if number % 50 == 0:
                consumer.commit(batch.cursor)
        if store.cursor is not None:
            consumer.commit(store.cursor)
