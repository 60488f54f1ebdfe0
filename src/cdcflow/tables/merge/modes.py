"""The modes: what the rows of a table in the warehouse are, defined once for every engine.

    current       one row for each row of the source
    soft_delete   these, and the deleted ones with their last values, marked by `_is_deleted`
    append        one row for each change of the log
    history       one row for each version of a row, with its two ends

A mode determines which columns a table has in addition to the source's, and what a table in this mode needs of the log.
How a range of changes becomes its rows is defined where the range becomes SQL (`cdcflow.tables.job.foldings`): each
mode creates a `Folding`, which any engine runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import COMMIT_TS, MISSING, OFFSET, OP, TRANSACTION, UNCHANGED, Table, TableId
from cdcflow.tables.merge import history_columns as ends
from cdcflow.tables.merge.history_columns import AUTO_CDC, OffsetNames
from cdcflow.tables.merge.policy import Mode, TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow, rebuilt

MODE_PROPERTY = "cdcflow.mode"
"""The property of a table that has its mode; a table without it has the mode `current`."""

DELETED = "_is_deleted"
"""The column of the mode soft_delete that is true if the source has deleted the row. (Iceberg reserves `_deleted`.)
"""

PURGED = "_is_purged"
"""A column of the mode soft_delete, if purges may keep rows: true if the source has deleted the row by such a purge,
which leaves `_is_deleted` false."""


@dataclass(frozen=True, slots=True)
class ModeRules:
    """What a mode means for shapes, positions and statements.

    `columns`: the table's own, after the source's: names and types (Spark's text). `names`: the one among them that
    lists the columns whose value in a row means nothing. `ended`: the one that is true in a deleted row; later changes
    ignore such a row. `purged`: the same for a row that a purge left unmarked. `needs_key`: rows are identified by a
    key. `keeps_changes`: the log's changes are the table's content, so the table begins where the log does, none of its
    rows are swept, rows of a dropped source table stay, and a gap in the log is refused. `variant` distinguishes rules
    of one mode. `ends`: the names of the columns for the ends of versions. `in_turn`: each incarnation of the source
    table is folded separately.
    """

    name: Mode
    columns: tuple[tuple[str, str], ...]
    names: str = MISSING
    ended: str | None = None
    purged: str | None = None
    needs_key: bool = False
    keeps_changes: bool = False
    variant: str = ""
    ends: OffsetNames | None = None
    in_turn: bool = False

    @property
    def property_value(self) -> str:
        """The mode as the value of a table's property."""
        return f"{self.name}/{self.variant}" if self.variant else self.name

    @property
    def open_only(self) -> str:
        """The SQL condition, on one column of a row, that the source currently has the row; "" if the source has all
        rows."""
        return "" if self.ends is None else f"{name_sql(self.ends.end)} IS NULL"

    @property
    def ending_columns(self) -> tuple[str, ...]:
        """The columns `ended` and `purged`, as far as the mode has them. In a row that the source no longer has, one of
        them is true; in mode `history` it has a value."""
        return tuple(name for name in (self.ended, self.purged) if name is not None)

    @property
    def own(self) -> frozenset[str]:
        """The names of the table's own columns."""
        return frozenset(name for name, _ in self.columns)

    def order(self, key: Sequence[str]) -> tuple[str, ...]:
        """Return the columns by which a table's rows are clustered if its source has this key; empty if rows stay in
        order of arrival."""
        if self.keeps_changes:
            return (OFFSET,)
        if not key:
            return ()
        return (*key, self.ends.start) if self.ends is not None else tuple(key)

    def check(self, shape: Table) -> None:
        """Check that a table of this shape can have this mode.

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
SOFT_DELETE_KEEPING = ModeRules(
    "soft_delete",
    (*_ROWS, (DELETED, "boolean"), (PURGED, "boolean")),
    ended=DELETED,
    purged=PURGED,
    needs_key=True,
    variant="purges",
)
APPEND = ModeRules("append", _CHANGES, names=UNCHANGED, keeps_changes=True)


def _history(names: OffsetNames, variant: str) -> ModeRules:
    columns = (*ends.columns(names), *_ROWS)
    return ModeRules("history", columns, ended=names.end, needs_key=True, variant=variant, ends=names, in_turn=True)


HISTORY = _history(OffsetNames(), "")
HISTORY_AUTO_CDC = _history(AUTO_CDC, "auto_cdc")

_ALL = (CURRENT, SOFT_DELETE, SOFT_DELETE_KEEPING, APPEND, HISTORY, HISTORY_AUTO_CDC)
_KNOWN = {rules.property_value: rules for rules in _ALL}


def mode_of_properties(properties: Mapping[str, str]) -> ModeRules | None:
    """Return the mode of a table with these properties; `None` if this cdcflow does not know it."""
    return _KNOWN.get(properties.get(MODE_PROPERTY, CURRENT.name))


def decide_mode(table: TableId, properties: Mapping[str, str] | None, policy: TablePolicy) -> ModeRules:
    """Return the mode of a table. `properties`: those of the existing table (`None` if it does not exist); `policy`:
    the table's settings.

    Raises:
        CannotFollow: the settings have a different mode than the table, or this cdcflow does not know the table's mode.
    """
    there = None if properties is None else properties.get(MODE_PROPERTY, CURRENT.name)
    asked = _requested_value(there, policy)
    if there is not None and asked not in (None, there):
        raise CannotFollow(
            f"table {table} cannot be merged with mode {_words(asked)}: it was created with mode {_words(there)}",
            remedy=f"{rebuilt(table)}; or set its mode back ({_setting(table, there)}), and run `cdcflow merge`",
        )
    name = there or asked or CURRENT.name
    rules = _KNOWN.get(name)
    if rules is None:
        raise CannotFollow(
            f"table {table} cannot be merged: this cdcflow does not know mode {name}",
            remedy="merge with the cdcflow version that created the table, or a newer one"
            if there
            else f"set another mode ({_setting(table, CURRENT.name)}), and run `cdcflow merge`",
        )
    return rules


def _requested_value(there: str | None, policy: TablePolicy) -> str | None:
    """Return the mode that the settings request, as a property's value. Where they set nothing, it is that of the table
    (`there`)."""
    wanted, columns = policy.mode, policy.history_columns
    plain, keeping = SOFT_DELETE.property_value, SOFT_DELETE_KEEPING.property_value
    if wanted == "soft_delete" or (wanted is None and there in (plain, keeping)):
        return keeping if policy.kept_purges or there == keeping else plain
    if wanted != "history":
        return wanted
    if columns is None:
        return there if there in (HISTORY.property_value, HISTORY_AUTO_CDC.property_value) else HISTORY.property_value
    return HISTORY_AUTO_CDC.property_value if columns == "auto_cdc" else HISTORY.property_value


def _words(said: str | None) -> str:
    return (said or "").replace("/auto_cdc", " and history_columns auto_cdc").replace("/purges", " and kept purges")


def _setting(table: TableId, said: str) -> str:
    """Return the setting that gives one table a mode, as an operator would write it."""
    spelled = {
        HISTORY_AUTO_CDC.property_value: "history, history_columns: auto_cdc",
        SOFT_DELETE.property_value: "soft_delete, purges: {}",
        SOFT_DELETE_KEEPING.property_value: "soft_delete",
    }
    mode = spelled.get(said, said)
    return f"merge.tables.each: {{{json.dumps(str(table), ensure_ascii=False)}: {{mode: {mode}}}}}"
