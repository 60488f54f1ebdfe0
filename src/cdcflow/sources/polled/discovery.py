"""Polls once: the changes of each item since it was last read become a record of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdcflow.model.table import Table, TableId
from cdcflow.sources.polled.differences import ItemDifference, appended_rows, as_changes, by_key, has_key, without
from cdcflow.sources.polled.items import Changing, Item, Poller, Unfit
from cdcflow.sources.polled.ledger import Ledger, Stop, StoredItem, WrittenChanges
from cdcflow.sources.polled.shapes import column_types, fit_rows


class Discovery:
    """Polls items into a ledger. Used by one thread at a time; another process that polls waits."""

    def __init__(self, poller: Poller, ledger: Ledger) -> None:
        self._poller = poller
        self._ledger = ledger

    def poll(self, *, retry: bool = False) -> None:
        """Read the items that are new or changed.

        `retry`: a table that stopped at an item continues even if that item has not changed since.

        Raises:
            SourceUnavailable: items cannot be listed or read now.
        """
        with self._ledger.polling():
            listed = list(self._poller.items())
            self._let_continue(listed, retry=retry)
            prints = self._ledger.prints()
            for item in listed:
                if prints.get((item.table, item.name)) != item.print:
                    self._take(item)

    def _let_continue(self, listed: Sequence[Item], *, retry: bool) -> None:
        prints = {(item.table, item.name): item.print for item in listed}
        for table, why in self._ledger.stops().items():
            if retry or prints.get((table, why.item)) != why.print:
                self._ledger.stop(table, None)

    def _take(self, item: Item) -> None:
        ledger = self._ledger
        if item.table in ledger.stops():
            return
        known, shape = ledger.item(item.table, item.name), ledger.shape(item.table)
        try:
            content = item.read(column_types(shape, item.types))
            shape, rows = fit_rows(content, shape, item.table, item.key, item.types)
            old = self._old_rows(known, shape)
            found = by_key(old, rows, item.key) if item.key else appended_rows(old, rows)
        except Changing:
            return
        except Unfit as why:
            ledger.stop(item.table, Stop(item.name, item.print, why.reason, why.remedy))
            structlog.get_logger("cdcflow").warning(
                "table stopped", table=str(item.table), item=item.name, why=why.reason, remedy=why.remedy
            )
            return
        self._record(item, known, shape, rows, found)

    def _old_rows(self, known: StoredItem | None, shape: Table) -> pa.Table:
        if known is None:
            return shape.row_schema.empty_table()
        return in_shape(self._ledger.read_rows(known.content), shape)

    def _record(
        self,
        item: Item,
        known: StoredItem | None,
        shape: Table,
        rows: pa.Table,
        found: ItemDifference,
    ) -> None:
        ledger = self._ledger
        lost = None if known is None or known.lost is None else ledger.read_rows(known.lost)
        files: dict[str, str] = {}
        if item.key:
            others = [one for one in ledger.items(item.table) if one.name != item.name]
            found, lost, files = self._take_keys(item.key, found, lost, others)
        changes = None
        if found.deleted.num_rows or found.written.num_rows:
            written = as_changes(shape, found)
            changes = WrittenChanges(ledger.write_rows(written), written.nbytes)
        kept = None if lost is None or not lost.num_rows else ledger.write_rows(lost)
        content = ledger.write_rows(rows)
        ledger.add_item(shape, StoredItem(item.name, item.print, content, kept, rows.num_rows), files, changes)

    def _take_keys(
        self, key: tuple[str, ...], found: ItemDifference, lost: pa.Table | None, others: Sequence[StoredItem]
    ) -> tuple[ItemDifference, pa.Table | None, dict[str, str]]:
        """Assign to an item the keys that it wrote, and remove them from other items.

        Return the difference, without deletes of keys that the item had already lost; the keys that the item has lost
        and not written again; and, by other item, the file with the keys that it has lost now.
        """
        written = found.written.select(list(key))
        files: dict[str, str] = {}
        is_elsewhere = has_key(written, None, key)
        for other in others:
            keys = self._ledger.read_rows(other.content, key)
            gone = None if other.lost is None else self._ledger.read_rows(other.lost)
            taken = without(keys, gone, key).filter(has_key(without(keys, gone, key), written, key))
            if taken.num_rows:
                is_elsewhere = pc.or_(is_elsewhere, has_key(written, taken, key))
                files[other.name] = self._ledger.write_rows(taken if gone is None else pa.concat_tables([gone, taken]))
        deleted = without(found.deleted, lost, key)
        if lost is not None:
            lost = without(without(lost, written, key), found.deleted, key)
        is_new = pc.and_(found.is_new, pc.invert(is_elsewhere))
        return ItemDifference(deleted, found.written, is_new), lost, files


def in_shape(rows: pa.Table, shape: Table) -> pa.Table:
    """Return stored rows in the current columns of their table: a column that was added since is NULL."""
    names = set(rows.column_names)
    columns = [
        rows.column(c.name) if c.name in names else pa.chunked_array([pa.nulls(rows.num_rows, c.type.arrow)])
        for c in shape.columns
    ]
    return pa.table(columns, schema=shape.row_schema)


def live_rows(ledger: Ledger, item: StoredItem, shape: Table) -> pa.Table:
    """Return the rows of an item whose keys belong to it, because it wrote them last.

    Raises:
        FileNotFoundError: the item has another content now.
    """
    rows = in_shape(ledger.read_rows(item.content), shape)
    return rows if item.lost is None else without(rows, ledger.read_rows(item.lost), shape.key)


def unknown_tables(poller: Poller, ledger: Ledger | None) -> list[Table]:
    """Return the tables that a first poll would find, without storing anything. Tables that do not fit are not
    included."""
    found: dict[TableId, Table] = {}
    for item in poller.items():
        if item.table not in found and (ledger is None or ledger.shape(item.table) is None):
            try:
                content = item.read(column_types(None, item.types))
                found[item.table] = fit_rows(content, None, item.table, item.key, item.types)[0]
            except (Unfit, Changing):
                continue
    return list(found.values())
