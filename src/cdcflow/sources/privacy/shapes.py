"""A table as it leaves the source under its policies, and its rows and keys. Pure, but it uses secret keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import TableMisfit
from cdcflow.model.change import ChangeBatch, KeySet
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import BEFORE, OP, UNCHANGED, Column, Table
from cdcflow.sources.privacy.kernels import Convert, bytes_of
from cdcflow.sources.privacy.person_images import rows_to_reread, without_unknown_persons
from cdcflow.sources.privacy.policies import PrivacyPolicy, misfit
from cdcflow.sources.privacy.secret_keys import PolicyKey

SEALED = "sealed:"
"""How an encrypted plan or cursor begins."""


@dataclass(frozen=True)
class PrivateTable:
    """A table with its policies. `raw`: as the source has it; `table`: as it leaves. `policies`: by the names of the
    columns that have one. `converts`: the conversions of the values of those columns; `dropped`: the columns that are
    dropped; `persons`: the column with the person of each value, for columns that are encrypted by persons."""

    raw: Table
    table: Table
    policies: Mapping[str, PrivacyPolicy]
    converts: Mapping[str, Convert]
    dropped: frozenset[str]
    persons: Mapping[str, str]

    @classmethod
    def of(cls, raw: Table, policies: Mapping[str, PrivacyPolicy]) -> PrivateTable:
        """Apply policies, given by the names of columns, to a table.

        Raises:
            ConfigurationError: a policy does not fit its column.
        """
        columns: list[Column] = []
        converts: dict[str, Convert] = {}
        for column in raw.columns:
            policy = policies.get(column.name)
            if policy is None:
                columns.append(column)
                continue
            if column.name in raw.key:
                _check_key(raw, column, policy)
            changed, converts[column.name] = policy.apply(raw.id, column)
            if changed is not None:
                columns.append(changed)
        if not columns:
            raise misfit(raw.id, "every column is dropped", "leave the table out of source.tables instead")
        names = {c.name for c in columns}
        dropped = frozenset(name for name in policies if name not in names)
        persons = {name: _person_column(raw, name, p) for name, p in policies.items() if p.persons is not None}
        return cls(raw, replace(raw, columns=tuple(columns)), policies, converts, dropped, persons)

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def changes(self, batch: ChangeBatch) -> ChangeBatch:
        rows = without_unknown_persons(self.raw, batch.rows, self.persons) if self.persons else batch.rows
        columns = [*self._columns(rows), rows.column(OP), self._unchanged_names(rows.column(UNCHANGED))]
        columns.append(self._before(rows.column(BEFORE)))
        return ChangeBatch(
            self.table, batch.index, pa.RecordBatch.from_arrays(columns, schema=self.table.change_schema)
        )

    def rows_to_reread(self, batch: ChangeBatch) -> pa.Array | None:
        """Return which of these changes must be read by key; None if no change must.

        They are changes with values that are encrypted for an unknown or an earlier person.
        """
        return rows_to_reread(self.raw, batch.rows, self.persons) if self.persons else None

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the raw table's `row_schema` as they leave."""
        return pa.RecordBatch.from_arrays(self._columns(rows), schema=self.table.row_schema)

    def _columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        names = (c.name for c in self.raw.columns if c.name not in self.dropped)
        return [self._convert(name, rows.column(name), rows.column) for name in names]

    def _convert(self, name: str, values: pa.Array, column: Callable[[str], pa.Array]) -> pa.Array:
        """Return the values of a column as they leave. `column` returns another column of the same rows."""
        convert = self.converts.get(name)
        if convert is None:
            return values
        try:
            persons = self.policies[name].persons
            return convert(values) if persons is None else persons.convert(values, column(self.persons[name]))
        except pa.ArrowException:  # a new message: Arrow's own may contain the value
            raise TableMisfit(
                f"table {self.raw.id} has a value in column {name} to which its policy "
                f"({self.policies[name].text}) cannot be applied",
                remedy=f"use null, mask or drop for {name} in tables, then start again",
                runbook="column-policies",
            ) from None

    def _unchanged_names(self, lists: pa.Array) -> pa.Array:
        """The names of columns that were not sent, without those that are dropped."""
        if not self.dropped or lists.null_count == len(lists):
            return lists
        names, parents = lists.flatten(), pc.list_parent_indices(lists)
        stay = pc.invert(pc.is_in(names, pa.array(sorted(self.dropped), pa.string())))
        left = parents.filter(stay).to_numpy(zero_copy_only=False)
        counts = np.bincount(left, minlength=len(lists))
        ends = np.zeros(len(lists) + 1, np.int32)
        np.cumsum(counts, out=ends[1:])
        return pa.ListArray.from_arrays(pa.array(ends), names.filter(stay), type=lists.type, mask=pa.array(counts == 0))

    def _before(self, olds: pa.Array) -> pa.Array:
        arrow = self.table.before_type
        if olds.null_count == len(olds):
            return pa.nulls(len(olds), arrow)
        # `flatten` makes every field of an old row that is NULL NULL as well, whatever its buffers hold.
        found = dict(zip((f.name for f in olds.type), olds.flatten(), strict=True))
        children = [self._convert(field.name, found[field.name], found.__getitem__) for field in arrow]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=olds.is_null())

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def key_policies(self) -> Mapping[str, PrivacyPolicy]:
        """The policies of the columns that identify rows."""
        return {name: self.policies[name] for name in self.raw.key if name in self.policies}

    @property
    def hides_keys(self) -> bool:
        return bool(self.key_policies)

    def keys(self, keys: KeySet) -> KeySet:
        """Return keys as they leave the source. Keys of a table without a key are whole rows."""
        names = [name for name in keys.keys.column_names if name not in self.dropped]
        return KeySet(pa.table({name: self._whole(name, keys.keys) for name in names}))

    def _whole(self, name: str, keys: pa.Table) -> pa.Array:
        found = keys.column(name).combine_chunks()
        values = found if isinstance(found, pa.Array) else found.chunk(0)
        return self._convert(name, values, keys.column)

    def raw_keys(self, keys: KeySet) -> KeySet | None:
        """Return keys, given as they leave, as the source has them; None if a hash hides them.

        Raises:
            ValueError: they were encrypted with another key.
        """
        if not all(policy.is_reversible for policy in self.key_policies.values()):
            return None
        return KeySet(
            pa.table({name: self._raw_values(name, keys.keys.column(name)) for name in keys.keys.column_names})
        )

    def _raw_values(self, name: str, column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        policy = self.key_policies.get(name)
        if policy is None or policy.key is None:
            return column
        arrow = self.raw.row_schema.field(name).type
        values = [policy.key.decrypt(value) for value in column.to_pylist()]
        plain = pa.array(values, pa.binary())
        return plain if pa.types.is_binary(arrow) else plain.cast(pa.string()).cast(arrow)

    # ── texts that contain keys ─────────────────────────────────────────────────────────────────────────────

    def seal(self, text: str | None) -> str | None:
        """Encrypt a plan or a cursor, which may contain keys, for a checkpoint."""
        if text is None or not self.hides_keys:
            return text
        return SEALED + self._sealing.seal(text)

    def unseal(self, text: str) -> str:
        """Decrypt a plan or a cursor of a checkpoint. Raises ValueError if another key sealed it."""
        return self._sealing.unseal(text.removeprefix(SEALED))

    @cached_property
    def _sealing(self) -> PolicyKey:
        return next(policy.key for policy in self.key_policies.values() if policy.key is not None)


def unseal(text: str | None, table: PrivateTable | None) -> str | None:
    """Return a plan or a cursor of a checkpoint as the source wrote it.

    Raises:
        ValueError: the text was sealed with another key; or it is sealed and should not be, or the reverse.
    """
    if text is None:
        return None
    if (table is not None and table.hides_keys) != text.startswith(SEALED):
        raise ValueError("other policies were in force when this was stored")
    return text if table is None or not table.hides_keys else table.unseal(text)


def _person_column(table: Table, name: str, policy: PrivacyPolicy) -> str:
    """Return the column with the persons of a column's values.

    Raises:
        ConfigurationError: the column does not exist, its type has no text, or the table has no key.
    """
    names = {c.name.lower(): c for c in table.columns}
    found = next((names[given.lower()] for given in policy.key_by if given.lower() in names), None)
    if found is None:
        raise misfit(
            table.id,
            f"column {name} has key_by: {', '.join(policy.key_by)}, and there is no such column",
            f"{did_you_mean(policy.key_by[-1], (c.name for c in table.columns))}correct the name in key_by; if that "
            f"column was renamed, list both: key_by: [{policy.key_by[-1]}, NEW_NAME]",
        )
    if not table.key:
        raise misfit(
            table.id,
            f"column {name} has key_by, and the table has no key: after an erasure its rows could not be found",
            f"give it a primary key, or encrypt {name} without key_by",
        )
    try:
        bytes_of(pa.nulls(0, found.type.arrow))
    except pa.ArrowException:
        raise misfit(
            table.id,
            f"column {found.name} ({found.type.source}) has no text, which key_by needs",
            "name another column there",
        ) from None
    return found.name


def _check_key(table: Table, column: Column, policy: PrivacyPolicy) -> None:
    if policy.persons is not None:
        raise misfit(
            table.id,
            f"column {column.name} is part of the key, and has key_by: an erased person's rows would have no key",
            "use hash for it, or encrypt without key_by",
        )
    if not policy.is_for_keys:
        raise misfit(
            table.id,
            f"column {column.name} is part of the key, and {policy.text} would make its rows indistinguishable",
            "use hash or encrypt for it, which keep different values different",
        )
    arrow = column.type.arrow
    if policy.is_reversible and not pa.types.is_binary(arrow):
        try:
            pa.nulls(0, pa.string()).cast(arrow)
        except pa.ArrowException:
            raise misfit(
                table.id,
                f"column {column.name} ({column.type.source}) is part of the key, and its text cannot be read back",
                "use hash for it",
            ) from None
