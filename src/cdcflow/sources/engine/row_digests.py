"""Digests of rows that a server computes: the row's text of `model.digest`, its number and its bucket, in the server's
SQL. A dialect defines the text of a column and the functions of its server. Pure.

If a column's text ever differed from the copy's although the value is the same, its bucket would differ, and its rows
would be read: that is harmless. One text for two different values must never occur.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from cdcflow.capture.ports.comparison import NoText
from cdcflow.model.digest import FOLDS, WHOLE_NUMBERS, Buckets, is_portable
from cdcflow.model.sqltypes import stored_type


class RowDigests(ABC):
    """The digests of one table's rows in SQL, and the buckets that the rows are in."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    @abstractmethod
    def reason(self, name: str, copied: str) -> str:
        """Return why a column has no text that is the same everywhere; empty if it has one. `copied`: its type in the
        copy."""

    @abstractmethod
    def pieces(self, name: str) -> Sequence[str]:
        """Return a column's text in SQL, as pieces to be concatenated; a piece that is NULL counts as empty."""

    @abstractmethod
    def concat(self, pieces: Sequence[str]) -> str: ...

    @abstractmethod
    def number(self, text: str) -> str:
        """Return the SQL for the first bits of a text's hash, as a whole number."""

    @abstractmethod
    def whole(self, name: str) -> str:
        """Return the SQL for a column of whole numbers, in a type that allows arithmetic with bits."""

    @abstractmethod
    def totals(self) -> str:
        """Return the select list of `sums`: bucket, number of rows, sum of digests, over rows with a bucket `b` and a
        digest `d`."""

    def sums(self, rows: str) -> str:
        """Return the query that adds up a table's rows by bucket. `rows`: the SQL after FROM. Raises NoText as `digest`
        does."""
        each = f"SELECT {self.bucket} AS b, {self.digest} AS d FROM {rows}"  # noqa: S608  a dialect quotes names
        return f"SELECT {self.totals()} FROM ({each}) AS each_row GROUP BY b"  # noqa: S608

    def among(self) -> str:
        """Return the SQL condition that a row is in one of the buckets."""
        return f"({self.bucket}) IN ({', '.join(map(str, self._buckets.only or (-1,)))})"

    @property
    def digest(self) -> str:
        """The SQL for a row's digest.

        Raises:
            NoText: some columns have no text.
        """
        return self.number(self._row_text([name for name, _ in self._buckets.columns]))

    @property
    def bucket(self) -> str:
        """The SQL for the number of a row's bucket. Raises NoText as `digest` does, for the key's columns."""
        key, mask = self._buckets.key, self._buckets.count - 1
        text = self._row_text(key)
        if not self._buckets.is_of_number:
            return f"{self.number(text)} & {mask}"
        number = self.whole(key[0])
        shifted = [f"({number} >> {bits} & {mask})" for bits in FOLDS]
        return f"({' + '.join([f'({number} & {mask})', *shifted])}) & {mask}"

    def _row_text(self, names: Sequence[str]) -> str:
        types = dict(self._buckets.columns)
        if wrong := {name: why for name in names if (why := self.reason(name, types[name]))}:
            raise NoText(wrong)
        return self.concat([piece for name in names for piece in (*self.pieces(name), "'|'")])


def other_type(arrow: pa.DataType, copied: str) -> str:
    """Return why values of this type differ from those in a copy that holds them as `copied`; empty if they do not."""
    if not is_portable(copied):
        return f"{copied} has no text that is the same everywhere"
    if copied == stored_type(arrow).table or (pa.types.is_integer(arrow) and copied in WHOLE_NUMBERS):
        return ""
    return f"the copy holds it as {copied}"
