"""A table as it leaves the source: under its row rules first, then its policies, then with its new names.

raw ──▶ RowRules (filter, computed columns) ──▶ PrivateTable (policies) ──▶ new names ──▶ log
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import ChangeBatch, KeySet
from cdcflow.model.table import BEFORE, LOG_COLUMNS, MERGE_COLUMNS, OP, UNCHANGED, Table
from cdcflow.sources.privacy.policies import PrivacyPolicy
from cdcflow.sources.privacy.shapes import PrivateTable
from cdcflow.sources.privacy.transform_counts import counting
from cdcflow.sources.rows.row_rules import LeavingRows, RowRules, lists_of, rows_misfit


@dataclass(frozen=True)
class LeavingTable:
    """A table with its settings. `raw`: as the source has it; `table`: as it leaves. `renamed`: new names by the names
    at the source."""

    raw: Table
    table: Table
    row_rules: RowRules | None
    private: PrivateTable | None
    renamed: Mapping[str, str]

    @classmethod
    def of(
        cls, raw: Table, row_rules: RowRules | None, private: PrivateTable | None, renamed: Mapping[str, str]
    ) -> LeavingTable:
        """Create the table as it leaves. Raises ConfigurationError if two columns would have one name."""
        shaped = raw if row_rules is None else row_rules.table
        left = shaped if private is None else private.table
        columns = tuple(replace(c, name=renamed.get(c.name, c.name)) for c in left.columns)
        named = bool(renamed) or bool(row_rules is not None and row_rules.computed)
        seen = {name.lower() for name in (*LOG_COLUMNS, *MERGE_COLUMNS)} if named else set[str]()
        for column in columns:
            if named and column.name.lower() in seen:
                raise rows_misfit(raw.id, f"two columns would be called {column.name}", "give one of them another name")
            seen.add(column.name.lower())
        table = replace(left, columns=columns, key=tuple(renamed.get(name, name) for name in left.key))
        return cls(raw, table, row_rules, private, renamed)

    @property
    def policies(self) -> Mapping[str, PrivacyPolicy]:
        return {} if self.private is None else self.private.policies

    @property
    def filters(self) -> bool:
        """Whether some rows may stay at the source."""
        return self.row_rules is not None and self.row_rules.where is not None

    @property
    def names_used(self) -> frozenset[str]:
        """The names of columns at the source that settings mention."""
        used = frozenset[str]() if self.row_rules is None else self.row_rules.columns_used
        return used | frozenset(self.policies) | frozenset(self.renamed)

    @property
    def digest_obstacles(self) -> Mapping[str, str]:
        """The reasons why the server cannot digest the rows as they leave, by column."""
        found = dict.fromkeys(self.policies, "it has a policy in tables")
        if self.row_rules is not None:
            where = self.row_rules.where
            columns = {*self.row_rules.computed, *(() if where is None else where.columns)}
            found |= dict.fromkeys(sorted(columns), "tables has where or computed with it")
        return found | dict.fromkeys(self.renamed, "it has another name in tables")

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def changes(self, batch: ChangeBatch) -> ChangeBatch:
        """Return changes as they leave; `index` lacks the rows that do not leave."""
        return self.leave(batch)[0]

    def leave(self, batch: ChangeBatch) -> tuple[ChangeBatch, KeySet | None]:
        """Return changes as they leave, and the keys of rows that must be read again.

        Those rows lack a column that a filter or a computed column needs: the source did not send it.
        """
        found = LeavingRows(batch) if self.row_rules is None else self._under_row_rules(self.row_rules, batch)
        left = self._after_row_rules(found.batch)
        again = None if found.incomplete is None else pa.array(found.incomplete)
        by_person = None if self.private is None else self.private.rows_to_reread(found.batch)
        if by_person is not None:
            again = by_person if again is None else pc.or_(again, by_person)
        if again is None or not pc.any(again).as_py():
            return left, None
        return left, KeySet(pa.Table.from_batches([left.rows.select(list(left.table.key)).filter(again)]))

    @staticmethod
    def _under_row_rules(rules: RowRules, batch: ChangeBatch) -> LeavingRows:
        with counting("row_rules", len(batch.index)) as counts:
            found = rules.changes(batch)
            counts.rows_out = len(found.batch.index)
        return found

    def found_by_key(self, batch: ChangeBatch) -> tuple[ChangeBatch, int]:
        """Return rows that a chunk read by key, as they leave, and how many of them leave as deletes because of the
        filter."""
        if self.row_rules is None:
            return self.changes(batch), 0
        with counting("row_rules", len(batch.index)) as counts:
            found, deleted = self.row_rules.found_by_key(batch)
            counts.rows_out = len(found.index)
        return self._after_row_rules(found), deleted

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return whole rows, in the raw table's `row_schema`, as they leave."""
        found = rows
        if self.row_rules is not None:
            with counting("row_rules", rows.num_rows) as counts:
                found = self.row_rules.rows(rows)
                counts.rows_out = found.num_rows
        if self.private is not None:
            with counting("policies", found.num_rows):
                found = self.private.rows(found)
        return pa.RecordBatch.from_arrays(found.columns, schema=self.table.row_schema)

    def _after_row_rules(self, batch: ChangeBatch) -> ChangeBatch:
        left = batch
        if self.private is not None:
            with counting("policies", len(batch.index)):
                left = self.private.changes(batch)
        if not self.renamed:
            return left
        rows = left.rows
        columns = rows.columns[: len(self.table.columns)]
        columns += [rows.column(OP), self._names(rows.column(UNCHANGED)), self._before(rows.column(BEFORE))]
        made = pa.RecordBatch.from_arrays(columns, schema=self.table.change_schema)
        return ChangeBatch(self.table, left.index, made)

    def _names(self, lists: pa.Array) -> pa.Array:
        if lists.null_count == len(lists):
            return lists
        olds, news = pa.array(list(self.renamed), pa.string()), pa.array(list(self.renamed.values()), pa.string())
        names = lists.flatten()
        named = pc.coalesce(news.take(pc.index_in(names, olds)), names)
        return lists_of(named, pc.list_value_length(lists).fill_null(0).to_numpy(), lists)

    def _before(self, olds: pa.Array) -> pa.Array:
        arrow = self.table.before_type
        if olds.null_count == len(olds):
            return pa.nulls(len(olds), arrow)
        return pa.StructArray.from_arrays(olds.flatten(), fields=list(arrow), mask=olds.is_null())

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def hides_keys(self) -> bool:
        return self.private is not None and self.private.hides_keys

    def keys(self, keys: KeySet) -> KeySet:
        """Return keys as they leave the source."""
        found = keys if self.private is None else self.private.keys(keys)
        return self._renamed_keys(found, self.renamed)

    def raw_keys(self, keys: KeySet) -> KeySet | None:
        """Return keys, given as they leave, as the source has them; None if a hash hides them.

        Raises:
            ValueError: they were encrypted with another key.
        """
        found = self._renamed_keys(keys, {new: old for old, new in self.renamed.items()})
        return found if self.private is None else self.private.raw_keys(found)

    def raw_names(self, names: Sequence[str]) -> list[str]:
        """Return the names that these columns have at the source."""
        olds = {new: old for old, new in self.renamed.items()}
        return [olds.get(name, name) for name in names]

    @staticmethod
    def _renamed_keys(keys: KeySet, names: Mapping[str, str]) -> KeySet:
        return KeySet(keys.keys.rename_columns([names.get(name, name) for name in keys.keys.column_names]))

    # ── texts that contain keys ─────────────────────────────────────────────────────────────────────────────

    def seal(self, text: str | None) -> str | None:
        """Encrypt a plan or a cursor, which may contain keys, for a checkpoint."""
        return text if self.private is None else self.private.seal(text)

    def unseal(self, text: str) -> str:
        """Decrypt a plan or a cursor of a checkpoint. Raises ValueError if another key sealed it."""
        return text if self.private is None else self.private.unseal(text)
