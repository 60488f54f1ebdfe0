"""The operations of a daemon: one list for every interface (command line, HTTP, control table).

An operation defines who may request it and its arguments. The capture carries it out; an interface only checks a
request against this list, passes it on, and shows the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cdcflow.config import Role
from cdcflow.errors import ConfigurationError

Kind = Literal["tables", "keys", "text", "count", "flag"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an operation.

    `kind`: a list of `schema.table`, a list of keys (each a list of texts, in the order of the key's columns), a text,
    a non-negative integer, or true or false.
    """

    name: str
    kind: Kind
    summary: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that a daemon can carry out."""

    name: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    role: Role = "operate"


_TABLES = Argument("tables", "tables", "As schema.table; none means all captured tables.")

OPERATIONS: Mapping[str, Operation] = {
    one.name: one
    for one in (
        Operation("status", "Tables, progress, lag and what the source keeps.", role="read"),
        Operation("backfill", "Read tables again while the capture continues.", (_TABLES,)),
        Operation("pause", "Stop reading existing rows of tables; the capture of changes continues.", (_TABLES,)),
        Operation("resume", "Continue reading rows of paused tables.", (_TABLES,)),
        Operation("cancel", "Cancel reading existing rows of tables.", (_TABLES,)),
        Operation(
            "adjust",
            "Priority and rate of reading existing rows.",
            (
                _TABLES,
                Argument("priority", "count", "Tables with a higher one are read first."),
                Argument("rows_per_second_max", "count", "0: no limit. It ends when the table is read."),
                Argument("reset", "flag", "Undo the adjustment: the settings apply again."),
            ),
        ),
        Operation(
            "reread",
            "Read some rows of a table again.",
            (
                Argument("tables", "tables", "One table, as schema.table.", required=True),
                Argument("keys", "keys", "The keys of the rows."),
                Argument("where", "text", "Or a predicate in the source's SQL that is true for them."),
            ),
        ),
        Operation(
            "repair",
            "Correct some rows of a table: read them from the source, and delete those that it does not have.",
            (
                Argument("tables", "tables", "One table, as schema.table.", required=True),
                Argument("keys", "keys", "The keys of the rows.", required=True),
                Argument(
                    "known_until", "text", "Until this position of the source the rows were last known to be right."
                ),
            ),
        ),
        Operation(
            "proven",
            "A table whose changes were lost is verified again: a comparison found it equal to its source.",
            (
                Argument("tables", "tables", "One table, as schema.table.", required=True),
                Argument("position", "text", "Up to this position in the source's log it is equal.", required=True),
                Argument("epoch", "count", "Of the log's latest cut when the comparison began.", required=True),
                Argument("base", "text", "Of a table with a base: which one it was."),
            ),
        ),
        Operation(
            "attach",
            "Do not read the existing rows of a table: they were loaded another way, and are unverified until "
            "compared.",
            (
                Argument("tables", "tables", "One table, as schema.table.", required=True),
                Argument("base", "text", "A name for these rows, which the table in the warehouse has.", required=True),
            ),
        ),
        Operation(
            "pause-capture",
            "Stop reading the source at a cut until the capture is resumed. A restart does not resume it.",
        ),
        Operation("resume-capture", "Continue reading the source where it was paused."),
        Operation("settings", "The settings that the daemon runs with, without secrets.", role="read"),
        Operation(
            "reload",
            "Apply the settings file's current content.",
            (Argument("digest", "text", "Only if the file has this hash."),),
        ),
        Operation("handover", "Stop at the next cut and become the standby of the next daemon."),
        Operation("stop", "End the daemon at the next cut."),
    )
}


def operation_of(request: Mapping[str, object]) -> Operation:
    """Return the operation of a request, whose arguments are of the right kinds.

    Raises:
        ConfigurationError: there is no such operation, it does not take an argument, or takes another kind of value.
    """
    operation = OPERATIONS.get(str(request.get("op")))
    if operation is None:
        raise ConfigurationError(
            f"there is no operation {request.get('op')!r}", remedy=f"use one of: {', '.join(sorted(OPERATIONS))}"
        )
    known = {argument.name: argument for argument in operation.arguments}
    for name, value in request.items():
        if name == "op":
            continue
        if name not in known:
            takes = ", ".join(known) or "nothing"
            raise ConfigurationError(f"operation {operation.name} takes no {name}", remedy=f"it takes {takes}")
        if not _is(known[name].kind, value):
            raise ConfigurationError(f"operation {operation.name}: {name} must be {_WORDS[known[name].kind]}")
    if missing := [name for name, argument in known.items() if argument.required and name not in request]:
        raise ConfigurationError(f"operation {operation.name} needs {', '.join(missing)}")
    return operation


_WORDS = {
    "tables": "a list of schema.table",
    "keys": "a list of keys, each a list of texts",
    "text": "a text",
    "count": "a whole number, at least 0",
    "flag": "true or false",
}


def _is(kind: Kind, value: object) -> bool:
    match kind:
        case "tables":
            return isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "keys":
            return isinstance(value, list) and all(
                isinstance(key, list) and key and all(isinstance(part, str) for part in key) for key in value
            )
        case "flag":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "count":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
