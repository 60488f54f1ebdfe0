"""The tables of docs/settings.md, generated from the settings models.

The name, values and default of a setting are those of its model, its meaning is the docstring below the field, and
`cdcflow.config.changes` determines when a running daemon applies it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from cdcflow.config import Settings
from cdcflow.config.changes import rule_for
from cdcflow.config.collections import Push, Serve
from cdcflow.config.columns import TableRules
from cdcflow.config.logs import FileLog, KafkaLog
from cdcflow.config.publish import Publish
from cdcflow.config.references import SecretReference
from cdcflow.config.sources import MySQL, Postgres
from cdcflow.config.units import BYTES, TIMES, with_unit
from cdcflow.config.whole import Merge, Service

APPLIED = {
    "running": "at once",
    "next cut": "at the next cut",
    "restart": "after a restart",
    "merge": "by the next merge",
    "when made": "when it is created",
    "refused": "with a new log only",
}
"""When a running daemon applies a changed setting, as docs/plan.md calls it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the page."""

    name: str
    values: str
    default: str
    meaning: str

    def row(self) -> str:
        applied = APPLIED[rule_for(self.name).taken]
        cells = (f"`{self.name}`", self.values, self.default, self.meaning, applied)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def sections() -> dict[str, list[Setting]]:
    """The rows of each table, by the name of its marker."""
    postgres, mysql = list(_settings(Postgres, "source.")), list(_settings(MySQL, "source."))
    names = {one.name for one in postgres} & {one.name for one in mysql}
    own = [f"source.{name}" for name in Postgres.__annotations__]
    postgres.sort(key=lambda one: one.name not in own)  # kind, url and tables first
    return {
        "source": [_of_both(one, mysql) for one in postgres if one.name in names],
        "postgres": [one for one in postgres if one.name not in names],
        "mysql": [one for one in mysql if one.name not in names],
        "log": list(_settings(FileLog, "log.")),
        "kafka": list(_settings(KafkaLog, "log.")),
        "tables": list(_settings(TableRules, "tables.")),
        "merge": list(_settings(Merge, "merge.")),
        "publish": list(_settings(Publish, "publish.")),
        "service": list(_settings(Service, "service.")),
        "serve": list(_settings(Serve, "serve.")),
    }


def table(settings: list[Setting]) -> str:
    head = ("| name | value | default | meaning | applied |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *(one.row() for one in settings)))


def _of_both(one: Setting, others: list[Setting]) -> Setting:
    """A setting of all databases: `source.kind` has the values of both models."""
    (other,) = (setting for setting in others if setting.name == one.name)
    values = one.values if one.values == other.values else f"{one.values}, {other.values}"
    return Setting(one.name, values, one.default, one.meaning)


def _settings(model: type[Settings], before: str, like: str = "") -> Iterator[Setting]:
    """Every setting of a model and of those inside it. `like`: the same settings for all tables, which it refers to."""
    for name, field in model.model_fields.items():
        inner, is_map = _model_of(field.annotation)
        if inner is Push:
            continue
        if inner is not None:
            yield from _settings(inner, f"{before}{name}.", before if is_map and name == "each" else "")
        elif like:
            example = ": `each: {public.orders: {mode: history}}`" if name == "mode" else ""
            meaning = f"The same for one table{example}."
            yield Setting(before + name, _values(field), f"as `{like}{name}`", meaning)
        else:
            meaning, default = _meaning(model, name)
            yield Setting(before + name, _values(field), default or _default(field), meaning)


def _model_of(kind: Any) -> tuple[type[Settings] | None, bool]:  # Any: an annotation
    """The settings model inside an annotation, and whether it is one per key of a map."""
    if isinstance(kind, type) and issubclass(kind, Settings):
        return kind, False
    is_map = get_origin(kind) is dict
    found = [model for part in get_args(kind) if (model := _model_of(part)[0]) is not None]
    return (found[0], is_map) if found else (None, False)


def _meaning(model: type[Settings], name: str) -> tuple[str, str]:
    """The docstring below a field, and its last sentence `Default: …` if the default is not in the code."""
    for one in model.__mro__:
        if name in getattr(one, "__annotations__", {}):
            text = _docstrings(sys.modules[one.__module__].__file__ or "").get((one.__name__, name))
            if text is None:
                raise LookupError(f"{one.__name__}.{name} has no docstring below it")
            found = re.fullmatch(r"(.*?)(?: Default: (.+)\.)?", text, re.DOTALL)
            assert found is not None
            return found[1], found[2] or ""
    raise LookupError(f"{model.__name__} has no {name}")


@cache
def _docstrings(path: str) -> dict[tuple[str, str], str]:
    """The docstring below each field of a module's classes, as one line."""
    found = {}
    for node in ast.parse(Path(path).read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, after in zip(node.body, node.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    found[node.name, name] = " ".join(inspect.cleandoc(text).split())
    return found


def _values(field: FieldInfo) -> str:
    return _validated(field.metadata) or _kind(field.annotation)


def _validated(metadata: Sequence[Any]) -> str:  # Any: what pydantic keeps of an annotation
    """What a value with these validators is: a reference, or an amount with a unit."""
    for one in metadata:
        if one in get_args(SecretReference):
            return "reference"
        if isinstance(one, BeforeValidator) and one.func.__qualname__.startswith(with_unit.__name__):
            return "size" if inspect.getclosurevars(one.func).nonlocals["units"] is BYTES else "time"
    return ""


def _kind(kind: Any) -> str:  # Any: an annotation
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _validated(kind.__metadata__) or _kind(parts[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is tuple:
        return f"list of {_kind(parts[0])}" if get_origin(parts[0]) is Literal else "list"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    return {bool: "`true`, `false`", int: "number", float: "number", str: "text", Path: "path"}.get(kind, "map")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            return f"`{_amount(value, _values(field))}`"
        case tuple():
            return f"`[{', '.join(value)}]`"
        case dict():
            return "`{}`"
        case _:
            return f"`{value}`"


def _amount(value: float, kind: str) -> str:
    """A number with the largest unit in which it is whole."""
    by_kind: dict[str, Mapping[str, float]] = {"size": BYTES, "time": TIMES}
    units = by_kind.get(kind, {})
    for unit, factor in sorted(units.items(), key=lambda one: -one[1]):
        if value and value % factor == 0:
            name = {"kib": "KiB", "mib": "MiB", "gib": "GiB", "kb": "kB", "mb": "MB", "gb": "GB"}.get(unit, unit)
            return f"{value / factor:.0f}{name}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown() -> dict[str, str]:
    """Each table by the name of its marker."""
    return {name: table(settings) for name, settings in sections().items()}
