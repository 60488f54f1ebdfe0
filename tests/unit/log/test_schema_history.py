"""The numbers of shapes, and how they are kept while the log grows."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType


def shape(number: int) -> Table:
    columns = (Column("id", 1, ColumnType("bigint", pa.int64())),)
    return Table(TableId("public", f"t{number}"), number, columns, ("id",))


@contextmanager
def collections_let_others_run() -> Iterator[None]:
    """Any allocation may start a garbage collection, which may let another thread run: here it does."""

    def hand_over(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            time.sleep(0)

    usual = gc.get_threshold()
    gc.callbacks.append(hand_over)
    gc.set_threshold(50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(hand_over)


def test_history_can_be_written_while_new_shapes_are_added() -> None:
    """The sealing thread writes it while the capture runs, and a thousand tables appear at once."""
    history = SchemaHistory()
    for number in range(500):
        history.number(shape(number))
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(10):
                assert len(SchemaHistory.from_json(history.to_json())) >= 500
        except BaseException as error:  # noqa: BLE001 - shown below, in the test's own thread
            failed.append(error)

    writer = threading.Thread(target=write)
    with collections_let_others_run():
        writer.start()
        number = 500
        while writer.is_alive() and number < 1500:
            history.number(shape(number))
            number += 1
        writer.join()
    assert not failed
