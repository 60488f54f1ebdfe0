"""Translates operators' requests into commands for the machine, and its outcomes into the answer for every
interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.capture.attempt import Attempt, table_ids, tables_to_read
from cdcflow.capture.interleave.messages import (
    Adjust,
    Attach,
    Backfill,
    Cancel,
    Order,
    Outcome,
    Pause,
    Proven,
    Repair,
    Reread,
    Resume,
)
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.model.keytexts import keys_of
from cdcflow.model.position import Epoch, Position
from cdcflow.model.table import Table, TableId, word

REREAD_KEYS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of an operation on tables other than their names; `cdcflow.http.operations` documents them."""

    keys: Sequence[Sequence[str]] | None = None
    where: str | None = None
    known_until: str | None = None
    position: str | None = None
    epoch: int | None = None
    base: str | None = None
    priority: int | None = None
    rows_per_second_max: int | None = None
    reset: bool = False

    def details(self, orders: Sequence[Order]) -> dict[str, object]:
        """Return the arguments that are stored in the log: no keys and no predicate, because they are values of
        rows."""
        found = {
            "priority": self.priority,
            "rows_per_second_max": self.rows_per_second_max,
            "reset": self.reset or None,
            "keys": next((len(order.keys) for order in orders if isinstance(order, Reread | Repair)), None),
            "by_predicate": True if self.where is not None else None,
            "known_until": self.known_until,
            "position": self.position,
            "base": self.base,
        }
        return {name: value for name, value in found.items() if value is not None}


NO_ARGUMENTS = Arguments()


def orders_of(attempt: Attempt, op: str, names: Sequence[str], told: Arguments) -> tuple[Order, ...]:
    """Return the machine's commands for an operation on tables (no names: all that are captured).

    Raises:
        ConfigurationError: an unknown table or operation, nothing to adjust, or keys that do not fit the table.
        SourceUnavailable: the source does not answer which rows a predicate selects.
    """
    if op == "backfill":
        return (Backfill(tables_to_read(names, attempt.tables, attempt.progress)),)
    ids = table_ids(names, attempt.tables)
    match op:
        case "pause":
            return tuple(Pause(t) for t in ids)
        case "resume":
            return tuple(Resume(t) for t in ids)
        case "cancel":
            return tuple(Cancel(t) for t in ids)
        case "adjust":
            return _adjustments(ids, told)
        case "reread":
            return (_reread(attempt, names, ids, told),)
        case "repair":
            return (_repair(attempt, names, ids, told),)
        case "proven":
            return (_proven(names, ids, told),)
        case "attach":
            return (_attach(attempt, names, ids, told),)
        case _:
            raise ConfigurationError(
                f"unknown request {op!r}",
                remedy="use backfill, pause, resume, cancel, adjust, reread, repair, proven or attach",
                runbook="settings",
            )


def _adjustments(ids: Sequence[TableId], told: Arguments) -> tuple[Order, ...]:
    if told.priority is None and told.rows_per_second_max is None and not told.reset:
        raise ConfigurationError(
            "adjusting tables: nothing to adjust is given",
            remedy="give a priority (--priority), a rate (--rows-per-second-max) or --reset",
            runbook="order-refused",
        )
    return tuple(Adjust(t, told.priority, told.rows_per_second_max, told.reset) for t in ids)


def _reread(attempt: Attempt, names: Sequence[str], ids: Sequence[TableId], told: Arguments) -> Reread:
    if len(names) != 1 or (told.keys is None) == (told.where is None):
        raise ConfigurationError(
            "reading rows again: name one table, and either keys or a predicate",
            remedy="to read all rows of tables again run `cdcflow backfill`",
            runbook="order-refused",
        )
    attempted = f"reading rows of {ids[0]} again"
    if told.where is not None:
        found = attempt.keys_where(ids[0], told.where, REREAD_KEYS_MAX)
    else:
        found = keys_of(_table(attempt, ids[0]), told.keys or (), attempted)
    _check_count(attempted, ids[0], found)
    return Reread(ids[0], found)


def _repair(attempt: Attempt, names: Sequence[str], ids: Sequence[TableId], told: Arguments) -> Repair:
    if len(names) != 1 or told.keys is None:
        raise ConfigurationError(
            "repairing rows: name one table, and keys",
            remedy="to repair all rows of tables run `cdcflow backfill`",
            runbook="order-refused",
        )
    attempted = f"repairing rows of {ids[0]}"
    found = keys_of(_table(attempt, ids[0]), told.keys, attempted)
    _check_count(attempted, ids[0], found)
    return Repair(ids[0], found, None if told.known_until is None else Position(told.known_until))


def _proven(names: Sequence[str], ids: Sequence[TableId], told: Arguments) -> Proven:
    if len(names) != 1 or told.position is None or told.epoch is None:
        raise ConfigurationError(
            "marking a table as verified: name one table, and what was compared",
            remedy=f"run `cdcflow repair {word(ids[0])}`, which compares it and reports the result",
            runbook="order-refused",
        )
    return Proven(ids[0], Position(told.position), Epoch(told.epoch), told.base or "")


def _attach(attempt: Attempt, names: Sequence[str], ids: Sequence[TableId], told: Arguments) -> Attach:
    if len(names) != 1 or not told.base:
        raise ConfigurationError(
            "attaching a table: name one table, and its base",
            remedy=f"run `cdcflow attach {word(ids[0])} --from PATH`, which writes the base and reports it",
            runbook="order-refused",
        )
    if not _table(attempt, ids[0]).key:
        raise ConfigurationError(
            f"attaching {ids[0]}: it has no key to name the rows by that differ",
            remedy=f"run `cdcflow backfill {word(ids[0])}` to read all of it",
            runbook="order-refused",
        )
    return Attach(ids[0], told.base)


def _table(attempt: Attempt, wanted: TableId) -> Table:
    return next(t for t in attempt.tables if t.id == wanted)


def _check_count(attempted: str, table: TableId, found: KeySet) -> None:
    if not len(found):
        raise ConfigurationError(f"{attempted}: no row was requested, or none exists", runbook="order-refused")
    if len(found) > REREAD_KEYS_MAX:
        raise ConfigurationError(
            f"{attempted}: more than {REREAD_KEYS_MAX} keys at once",
            remedy=f"ask for fewer, or read the table whole by `cdcflow table backfill {word(table)}`",
            runbook="order-refused",
        )


def answer_json(
    op: str, outcomes: Sequence[Outcome], *, number: int | None = None, durable: bool = False
) -> dict[str, object]:
    """Return the answer to a command, for every interface."""
    told = {
        str(o.table or "capture"): {"outcome": o.outcome, **({"reason": o.reason} if o.reason else {})}
        for o in outcomes
    }
    capture = told.pop("capture", None)
    about = {} if capture is None else {"capture": capture}
    return {"op": op, **about, "tables": told, "number": number, "durable": durable}
