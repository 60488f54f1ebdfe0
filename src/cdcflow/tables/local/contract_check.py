"""Checks the rows that a commit would write against their table's contract: one query over columns for each table.

    rows of a range ──▶ one query ──▶ rows that break a promise
                                          ├─ stop        ContractBroken: nothing is committed
                                          ├─ quarantine  into <name>__quarantine first, then not into the table
                                          └─ warn        counted

Rows are written into quarantine before the table's commit: a merge that dies in between finds their offsets there, and
writes none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.table import OFFSET, TableId
from cdcflow.tables.local.contract_rules import NUMBER, ContractRules, RuleFailed, any_of, row_texts
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.table_files import TableFiles
from cdcflow.tables.merge.contract import REASON, ROW, Contract, ContractResult, quarantine_name_taken
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.statement import TARGET_PROPERTY

_COLUMNS = pa.schema(
    [
        pa.field(OFFSET, pa.int64()),
        pa.field(REASON, pa.string()),
        pa.field(ROW, pa.map_(pa.string(), pa.string())),
    ]
)


class ContractCheck:
    """The check of one table's new rows in one merge. `quarantine` opens the table for rows that break a promise."""

    def __init__(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], TableFiles[Any]],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        self._table = table
        self._contract = contract
        self._mode = mode
        self._quarantine = quarantine
        self._result = result
        self._metadata = metadata

    def rows_to_write(self, rows: pa.Table, first: int, session: DuckSession, app: str) -> pa.Table:
        """Return the rows that the table may show. Rows from before offset `first` are not new.

        Raises:
            ContractBroken: rows break a promise that stops the table, or a condition cannot be used.
        """
        rules = ContractRules.of(self._table, self._contract, self._mode, session.parse, rows.column_names)
        if not rules.rules or not len(rows):
            return rows
        try:
            found = rules.broken_rows(session, rows, first)
        except RuleFailed as failed:
            raise rules.refusal(failed) from None
        numbers = rules.judge(rules.count(found), self._result)
        if not numbers:
            return rows
        chosen = found.filter(any_of(found, numbers))
        places = chosen.column(NUMBER).to_numpy()
        self._write(rows.take(places), rules.reasons(chosen, numbers), app)
        stays = np.ones(len(rows), bool)
        stays[places] = False
        return rows.filter(pa.array(stays))

    def _write(self, rows: pa.Table, reasons: pa.Array, app: str) -> None:
        offsets = rows.column(OFFSET)
        with closing_table(self._quarantine()) as there:
            known = there.snapshot()
            if known is None:
                there.create(_COLUMNS, {}, self._metadata)
                there.snapshot()
            elif TARGET_PROPERTY in known.properties:
                raise quarantine_name_taken(self._table, self._contract)
            else:
                earlier = [there.read(file, [OFFSET]).column(OFFSET) for file in there.files()]
                written = pa.chunked_array([c for part in earlier for c in part.chunks], pa.int64())
                new = pc.invert(pc.is_in(offsets, value_set=written.combine_chunks()))
                rows, reasons = rows.filter(new), reasons.filter(new.combine_chunks())
            if not len(rows):
                return
            texts = row_texts(rows, self._mode.own)
            table = pa.Table.from_arrays([rows.column(OFFSET), reasons, texts], schema=_COLUMNS)
            there.replace([], table, self._metadata, f"{app}/quarantine", int(pc.max(rows.column(OFFSET)).as_py()))
            self._result.quarantined += len(rows)


def closing_table(table: TableFiles[Any]) -> closing[Any]:  # Any: the table is a FileTable, which has `snapshot`
    return closing(table)
