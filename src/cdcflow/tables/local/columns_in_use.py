"""What later merges and derivations need of files that were rewritten, computed by the thread that rewrites them.

Otherwise the first merge after a rewrite would read the new files as a whole: their keys, the columns from which
derived tables take rows, and the values by which they find them. Only what this process has of other files of the table
is computed. The rows of a new file are in memory at that time, so nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from cdcflow.model.table import OFFSET
from cdcflow.tables.local import decoded_columns
from cdcflow.tables.local.column_indexes import index_new_file, indexed_columns
from cdcflow.tables.local.decoded_columns import keep_new_column, kept_columns
from cdcflow.tables.local.file_keys import KNOWN, keys_of
from cdcflow.tables.local.scan import Numbers
from cdcflow.tables.local.table_files import File, NewFile, TableFiles


@dataclass(frozen=True, slots=True)
class ColumnsInUse:
    """Columns of a table. `searched`: those by which merges have searched; `decoded`, `indexed`: those from which
    derived tables have taken rows, and by which they have found rows."""

    searched: Sequence[str]
    decoded: Sequence[str]
    indexed: Sequence[str]

    @classmethod
    def of(cls, table: TableFiles[File], old: Sequence[File]) -> Self:
        """Return the columns that this process has used of a table. `old`: the files to rewrite."""
        whole = [field.name for field in table.schema if pa.types.is_integer(field.type) and field.name != OFFSET]
        searched = [n for n in whole if any(KNOWN.get(table.content_of(file, n)) is not None for file in old)]
        # Of small files nothing is decoded, but they may be rewritten into a large one.
        files = table.files()
        return cls(searched, kept_columns(table, files), indexed_columns(table, files))

    def prepare(self, table: TableFiles[Any], file: NewFile, rows: pa.Table, numbers: Numbers) -> None:
        """Compute what these columns of a new file are needed for. `numbers`: its rows among `rows`."""
        for name in self.searched:
            keys = rows.select([name, OFFSET]).take(pa.array(numbers))
            KNOWN.offer(table.content_of_new(file, name), len(keys), partial(keys_of, keys, name), at_once=True)
        if len(numbers) < decoded_columns.ROWS_MIN:
            return
        for name in dict.fromkeys([*self.decoded, *self.indexed]):
            values = _take(rows.column(name), numbers)
            if name in self.decoded:
                keep_new_column(table, file, name, values)
            if name in self.indexed:
                index_new_file(table, file, name, values)


def _take(values: pa.ChunkedArray, numbers: Numbers) -> pa.ChunkedArray:
    """Return some of the values; without copying them if their numbers are consecutive."""
    if np.all(np.diff(numbers) == 1):
        return values.slice(int(numbers[0]), len(numbers))
    return values.take(pa.array(numbers))
