"""What the rows of a table in the warehouse are, said once for every engine.

    current       one row for each row of the source
    soft_delete   these, and the deleted ones with their last values, marked by `_is_deleted`
    append        one row for each change of the log
    history       one row for each version of a row, with its two ends

A mode says which columns a table has besides the source's, and what of the log a table in this mode needs. How a range
of changes becomes its rows is said where the range becomes SQL (`cdcflow.warehouse.foldings`): each mode makes a
`Folding`, which any engine runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdcflow.merge import ends
from cdcflow.merge.ends import AUTO_CDC, Names
from cdcflow.merge.policy import HistoryColumns, Mode
from cdcflow.merge.refusals import CannotFollow, rebuilt
from cdcflow.merge.types import name_sql
from cdcflow.model.table import COMMIT_TS, MISSING, OFFSET, OP, TRANSACTION, UNCHANGED, Table, TableId

MODE_PROPERTY = "cdcflow.mode"
"""The table's mode; without it `current`."""

DELETED = "_is_deleted"
"""In soft_delete: whether the source has deleted the row. Iceberg keeps `_deleted` for itself."""


@dataclass(frozen=True, slots=True)
class ModeRules:
    """A mode, as far as shapes, positions and statements go.

    `columns`: the table's own, behind the source's: names and types (Spark's text). `names`: the one of them that lists
    columns whose cell in a row means nothing. `ended`: the one that says of a row that it is no more; for everything
    that comes later such a row does not count. `needs_key`: rows are told apart by a key. `keeps_changes`: the log's
    changes are the table's content, so that it begins where the log does, nothing of it is swept, what a dropped
    source table had stays, and a gap in the log is refused. `variant` tells rules of one mode apart. `ends`: what the
    ends of versions are called. `in_turn`: each incarnation of the source table is folded by itself.
    """

    name: Mode
    columns: tuple[tuple[str, str], ...]
    names: str = MISSING
    ended: str | None = None
    needs_key: bool = False
    keeps_changes: bool = False
    variant: str = ""
    ends: Names | None = None
    in_turn: bool = False

    @property
    def said(self) -> str:
        """How a table's property says it."""
        return f"{self.name}/{self.variant}" if self.variant else self.name

    @property
    def open_only(self) -> str:
        """Whether a row is one that the source has now, where a column of it says so, as SQL; "": any is."""
        return "" if self.ends is None else f"{name_sql(self.ends.end)} IS NULL"

    @property
    def own(self) -> frozenset[str]:
        """The names of the table's own columns."""
        return frozenset(name for name, _ in self.columns)

    def order(self, key: Sequence[str]) -> tuple[str, ...]:
        """By which columns a table's rows are clustered, whose source has this key; none: they lie as they came."""
        if self.keeps_changes:
            return (OFFSET,)
        if not key:
            return ()
        return (*key, self.ends.start) if self.ends is not None else tuple(key)

    def check(self, shape: Table) -> None:
        """See that a table of this shape can be kept in this mode.

        Raises:
            CannotFollow: it cannot.
        """
        if self.needs_key and not shape.key:
            raise CannotFollow(
                f"table {shape.id} cannot be merged with mode {self.name}: it has no key, by which a row is known",
                remedy=f"give it mode current or append ({_setting(shape.id, CURRENT.name)}), and run `cdcflow merge`",
            )


_ROWS = ((OFFSET, "bigint"), (MISSING, "array<string>"))
_CHANGES = (
    (OP, "string"),
    (OFFSET, "bigint"),
    (TRANSACTION, "bigint"),
    (COMMIT_TS, "timestamp"),
    (UNCHANGED, "array<string>"),
)

CURRENT = ModeRules("current", _ROWS)
SOFT_DELETE = ModeRules("soft_delete", (*_ROWS, (DELETED, "boolean")), ended=DELETED, needs_key=True)
APPEND = ModeRules("append", _CHANGES, names=UNCHANGED, keeps_changes=True)


def _history(names: Names, variant: str) -> ModeRules:
    columns = (*ends.columns(names), *_ROWS)
    return ModeRules("history", columns, ended=names.end, needs_key=True, variant=variant, ends=names, in_turn=True)


HISTORY = _history(Names(), "")
HISTORY_AUTO_CDC = _history(AUTO_CDC, "auto_cdc")

_KNOWN = {rules.said: rules for rules in (CURRENT, SOFT_DELETE, APPEND, HISTORY, HISTORY_AUTO_CDC)}


def known(properties: Mapping[str, str]) -> ModeRules | None:
    """The mode of a table with these properties; None: this cdcflow does not know it."""
    return _KNOWN.get(properties.get(MODE_PROPERTY, CURRENT.name))


def decided(
    table: TableId, properties: Mapping[str, str] | None, wanted: Mode | None, columns: HistoryColumns | None = None
) -> ModeRules:
    """The mode of a table. `properties`: those of the table that is there (None: there is none yet); `wanted`: what the
    settings say of it (None: nothing); `columns`: what they call the ends of a history's versions.

    Raises:
        CannotFollow: they say another mode than the table has, or one that this cdcflow does not know.
    """
    there = None if properties is None else properties.get(MODE_PROPERTY, CURRENT.name)
    asked = _asked(there, wanted, columns)
    if there is not None and asked not in (None, there):
        raise CannotFollow(
            f"table {table} cannot be merged with mode {_words(asked)}: it was made with mode {_words(there)}",
            remedy=f"{rebuilt(table)}; or set its mode back ({_setting(table, there)}), and run `cdcflow merge`",
        )
    name = there or asked or CURRENT.name
    rules = _KNOWN.get(name)
    if rules is None:
        raise CannotFollow(
            f"table {table} cannot be merged: this cdcflow does not know mode {name}",
            remedy="merge with the cdcflow that made the table, or a newer one"
            if there
            else f"set another one ({_setting(table, CURRENT.name)}), and run `cdcflow merge`",
        )
    return rules


def _asked(there: str | None, wanted: Mode | None, columns: HistoryColumns | None) -> str | None:
    """What the settings ask for, as a property says it. What they leave open is as it is there."""
    if wanted != "history":
        return wanted
    if columns is None:
        return there if there in (HISTORY.said, HISTORY_AUTO_CDC.said) else HISTORY.said
    return HISTORY_AUTO_CDC.said if columns == "auto_cdc" else HISTORY.said


def _words(said: str | None) -> str:
    return (said or "").replace("/auto_cdc", " and history_columns auto_cdc")


def _setting(table: TableId, said: str) -> str:
    """The setting that gives one table a mode."""
    mode = said if said != HISTORY_AUTO_CDC.said else "history, history_columns: auto_cdc"
    return f"merge.tables.each: {{{json.dumps(str(table), ensure_ascii=False)}: {{mode: {mode}}}}}"
