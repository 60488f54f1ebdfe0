"""Errors that end the merge of one table: that table is excluded from the cut, with the reason, and the merge continues
with the others.

An engine classifies its own errors (`Engine.failure`); this module turns the classification into a message and a
remedy. No message contains a row's values. The texts of an engine may contain them, so a message has only the error's
kind, the line of cdcflow where it occurred, and the file.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    SinkUnavailable,
    SyncFailed,
)
from cdcflow.model.table import TableId, word
from cdcflow.tables.cut import Cut
from cdcflow.tables.merge.refusals import CannotFollow, rebuilt
from cdcflow.tables.paths import CUTS, Warehouse
from cdcflow.tables.port import Engine, Failure, FailureKind, HandOver

Rows = TypeVar("Rows")

_log = structlog.get_logger()

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


_AGAIN = {"merged": "run `cdcflow merge`", "read": "read it again"}
_AFTER_ROOM = {"merged": "the next merge (a daemon's, or `cdcflow merge`) continues", "read": "then read it again"}


class TableFailed(CannotFollow):
    """The merge of one table ended with an error of its engine."""

    section = "table-failed"


class FileUnreadable(Exception):
    """The error for the file `place`, which cannot be read or has unexpected contents. Its cause is the reason."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(str(place))
        self.place = str(place)


@contextmanager
def reading(place: Path | str, *passing: type[Exception]) -> Iterator[None]:
    """Wrap the reading of a file, so that an error names the file. `passing`: kinds of errors that do not concern the
    file and are not changed.

    Raises:
        FileNotFoundError: the file does not exist.
        FileUnreadable: any other error, except cdcflow's own.
    """
    try:
        yield
    except (CdcflowError, HandOver, FileUnreadable):
        raise
    except FileNotFoundError as error:
        if error.filename is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place)) from error
        raise
    except Exception as error:
        if isinstance(error, passing):
            raise
        raise FileUnreadable(place) from error


def of_system(error: BaseException) -> Failure | None:
    """Return what an error of the operating system, or of reading a file, means; `None` for any other error."""
    place, is_unreadable = "", False
    for one in causes(error):
        if isinstance(one, FileUnreadable):
            place, is_unreadable = place or one.place, True
        if isinstance(one, OSError) and one.errno in _FULL | _REFUSED:
            kind: FailureKind = "full" if one.errno in _FULL else "refused"
            return Failure(kind, errno.errorcode[one.errno], place or str(one.filename or ""))
        if isinstance(one, OSError) and one.errno == errno.ENAMETOOLONG:
            return Failure("long", "ENAMETOOLONG", place or str(one.filename or ""))
        if isinstance(one, FileNotFoundError):
            return Failure("damaged", "ENOENT", place or str(one.filename or ""))
    return Failure("damaged", kinds(error), place) if is_unreadable else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def kinds(error: BaseException) -> str:
    """Return the kind of an error, and the line of cdcflow at which it was raised."""
    last = list(causes(error))[-1]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "cdcflow/" in f.filename]
    at = f" in {frames[-1].filename.rpartition('cdcflow/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(last).__name__}{at}"


def table_failed(
    table: TableId | str, engine: str, found: Failure, folder: str, log: str = "", *, attempted: str = "merged"
) -> TableFailed:
    """Return the error for a table that an engine failed at. `folder`: the table's folder; `log`: its log's folder."""
    place, told, command = found.place or folder, f"table {table} cannot be {attempted}:", _AGAIN[attempted]
    if found.kind in ("full", "refused") and not os.path.exists(place):
        place = place.rpartition("/")[0]  # the name of a file that was not created is random
    if found.kind == "full":
        return TableFailed(
            f"{told} there is no room at {place} ({found.what})",
            remedy=f"make room there; {_AFTER_ROOM[attempted]}; nothing is lost",
        )
    if found.kind == "refused":
        return TableFailed(
            f"{told} {place} may not be read or written ({found.what})",
            remedy=f"let this user read and write it, then {command}; nothing is lost",
        )
    if found.kind == "long":
        return TableFailed(
            f"{told} its name or the warehouse's path is too long for the file system ({found.what}); a character that"
            " is not a letter or digit of ASCII takes 3 to 12 of the 255 bytes of a folder's name",
            remedy="rename the table at the source, or merge into a bucket or a folder with a shorter path",
        )
    if found.kind == "damaged" and log and place.startswith(f"{log}/"):
        return TableFailed(
            f"{told} {place}, a file of the log, is damaged or gone ({found.what})",
            remedy=f"run `cdcflow log check --deep`; restore the file from a copy, then {command}",
            runbook="log-damaged",
        )
    if found.kind == "damaged":
        return TableFailed(
            f"{told} {place} is damaged or gone ({found.what})",
            remedy=f"restore it from a copy and {command}; or {rebuilt(table)}",
        )
    return TableFailed(
        f"{told} the {engine} engine failed ({found.what})",
        remedy=f"{command} once more; if it fails again, report this, and {rebuilt(table)}",
    )


def rows_missing(table: TableId, cut: int, count: int) -> CannotFollow:
    """Return the error for a table with rows that lack columns, although all of its rows were read."""
    return CannotFollow(
        f"table {table} cannot be merged up to cut {cut}: all of its rows were read, and {count} rows miss columns."
        " This happens if another program removed rows of the current-state table that then changed at the source",
        remedy=f"run `cdcflow backfill {word(table)}`, then `cdcflow merge`",
        runbook="table-changed-by-others",
    )


@contextmanager
def of_all_tables(engine: Engine, warehouse: Warehouse) -> Iterator[None]:
    """Wrap access to what all tables of a warehouse share: the table of cuts, and the catalog.

    Raises:
        SinkUnavailable: the disk is full.
        ConfigurationError: a shared file is damaged, or must not be read or written.
    """
    try:
        yield
    except HistoryLost as error:  # the table of cuts, whose rows no source has
        raise _of_all(
            Failure("damaged", "commits follow one that is torn or missing"), warehouse.location_of((CUTS,))
        ) from error
    except CdcflowError:
        raise
    except Exception as error:
        found = engine.failure(error)
        if found is None or found.kind == "fault":
            raise
        raise _of_all(found, warehouse.location_of((CUTS,))) from error


def _of_all(found: Failure, cuts: str) -> CdcflowError:
    place = found.place or cuts
    told = "what all tables of a warehouse have in common:"
    if found.kind == "full":
        return SinkUnavailable(
            f"{told} there is no room at {place} ({found.what})", remedy=f"make room there; {_AFTER_ROOM['merged']}"
        )
    if found.kind == "refused":
        return ConfigurationError(
            f"{told} {place} may not be read or written ({found.what})",
            remedy="let this user read and write it, then run `cdcflow merge`",
            runbook="warehouse-damaged",
        )
    if found.kind == "long":
        return ConfigurationError(
            f"{told} a path in the warehouse is too long for the file system ({found.what})",
            remedy="choose a shorter path for merge.warehouse",
            runbook="merge-session",
        )
    again = f"move {cuts} away, which loses the older cuts, and run `cdcflow merge`"
    if not place.startswith(cuts):
        again = "move the whole warehouse away, and run `cdcflow backfill` for its tables, then `cdcflow merge`"
    return ConfigurationError(
        f"{told} {place} is damaged or gone ({found.what})",
        remedy=f"restore it from a copy, then run `cdcflow merge`; or {again}",
        runbook="warehouse-damaged",
    )


def wanted_tables(cut: Cut, tables: Collection[str] | None, *, incomplete: bool) -> list[str]:
    """Return the names of the requested tables that the cut has (`None`: all of the cut). Those that are excluded from
    the cut are logged as warnings."""
    for name, why in sorted(cut.left_out.items()):
        if tables is None or name in tables:
            _log.warning("table not in the cut", table=name, cut=cut.cut, reason=why)
    return [
        name
        for name, table in sorted(cut.tables.items())
        if (table.complete or incomplete) and (tables is None or name in tables)
    ]


def read_tables(
    cut: Cut,
    wanted: Sequence[str],
    read: Callable[[str], Rows],
    engine: str,
    warehouse: Warehouse,
    failure: Callable[[Exception], Failure | None],
) -> dict[str, Rows]:
    """Return the requested tables of a cut, keyed by name, without those that cannot be read; each of these is logged
    as a warning.

    Raises:
        TableFailed: no table can be read.
    """
    found: dict[str, Rows] = {}
    failed: list[TableFailed] = []
    for name in wanted:
        try:
            found[name] = read(name)
        except CdcflowError:
            raise
        except Exception as error:
            if (what := failure(error)) is None:
                raise
            folder = warehouse.location_of(cut.tables[name].path.split("/"))
            failed.append(table_failed(name, engine, what, folder, attempted="read"))
            failed[-1].__cause__ = error
            _log.warning("table not in the cut", table=name, cut=cut.cut, reason=failed[-1].with_section)
    if failed and not found:
        raise failed[0]
    return found


def contradiction(table: TableId, error: InvariantViolated) -> TableFailed:
    """Return the error for a table whose data contradicts itself."""
    remedy = None if error.remedy else rebuilt(table)
    return TableFailed(f"table {table} cannot be merged: {error}", remedy=remedy, runbook=error.runbook)


def is_of_one_table(error: CdcflowError) -> bool:
    """Return whether an error of cdcflow that ended a table's merge concerns that table alone."""
    if isinstance(error, InvariantViolated):
        return not isinstance(error, SyncFailed)
    return isinstance(error, (CannotFollow, HistoryLost)) or error.runbook == CannotFollow.section
