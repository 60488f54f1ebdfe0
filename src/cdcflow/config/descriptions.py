"""The settings in words: names, values, defaults and meanings, taken from the settings models.

The meaning of a setting is the docstring below its field, and `changes` determines when a running daemon applies it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from cdcflow.config.base import Settings, settings_of
from cdcflow.config.changes import rule_for
from cdcflow.config.collections import Push
from cdcflow.config.passwords import PasswordSetting
from cdcflow.config.references import SecretReference
from cdcflow.config.units import BYTES, TIMES, with_unit

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
    """A setting as texts: its name, the values that it may have, its default, and its meaning."""

    name: str
    values: str
    default: str
    meaning: str

    def row(self) -> str:
        applied = APPLIED[rule_for(self.name).taken]
        cells = (f"`{self.name}`", self.values, self.default, self.meaning, applied)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def describe(model: type[Settings], before: str, like: str = "") -> Iterator[Setting]:
    """Yield every setting of a model and of the models inside it. `like`: the prefix of the settings for all tables,
    if the model has the settings for one table; their descriptions then refer to it."""
    for name, field in settings_of(model).items():
        inner, is_map = _model_of(field.annotation)
        if inner is Push:
            continue
        if inner is not None and _values(field) == "reference":
            yield _with_its_meaning(model, name, field, before)
        if inner is not None:
            yield from describe(inner, f"{before}{name}.", before if is_map and name == "each" else "")
        elif like:
            example = ": `each: {public.orders: {mode: history}}`" if name == "mode" else ""
            meaning = f"The same for one table{example}."
            yield Setting(before + name, _values(field), f"as `{like}{name}`", meaning)
        else:
            yield _with_its_meaning(model, name, field, before)


def _with_its_meaning(model: type[Settings], name: str, field: FieldInfo, before: str) -> Setting:
    own = next(attribute for attribute, one in model.model_fields.items() if one is field)
    meaning, default = meaning_of(model, own)
    return Setting(before + name, _values(field), default or default_of(field), meaning)


def _model_of(kind: Any) -> tuple[type[Settings] | None, bool]:  # Any: an annotation
    """Return the settings model inside an annotation (None if there is none), and whether the annotation is a map
    from names to that model."""
    if isinstance(kind, type) and issubclass(kind, Settings):
        return kind, False
    is_map = get_origin(kind) is dict
    found = [model for part in get_args(kind) if (model := _model_of(part)[0]) is not None]
    return (found[0], is_map) if found else (None, False)


def meaning_of(model: type[Settings], name: str) -> tuple[str, str]:
    """Return the docstring below a field, and separately the default from its last sentence `Default: …`, for a
    default that the code does not show. Each is empty if it does not exist."""
    for one in model.__mro__:
        if name in getattr(one, "__annotations__", {}):
            file = sys.modules[one.__module__].__file__ or ""
            text = _docstrings(file).get((one.__name__, name), "")
            meaning, _, default = text.partition(" Default: ")
            return (meaning, default.removesuffix(".")) if default.endswith(".") else (text, "")
    return "", ""


@cache
def _docstrings(path: str) -> dict[tuple[str, str], str]:
    """Return the docstring below each field of a module's classes, as one line; empty if the module's text is
    missing."""
    found = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, after in zip(node.body, node.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    found[node.name, name] = " ".join(inspect.cleandoc(text).split())
    return found


def _values(field: FieldInfo) -> str:
    return _validator_kind(field.metadata) or _kind(field.annotation)


def _validator_kind(metadata: Sequence[Any]) -> str:  # Any: what pydantic keeps of an annotation
    """Return a word for the kind of value that these validators accept: a reference, or an amount with a unit."""
    for one in metadata:
        if one in (*get_args(SecretReference), *get_args(PasswordSetting)):
            return "reference"
        if isinstance(one, BeforeValidator) and one.func.__qualname__.startswith(with_unit.__name__):
            return "size" if inspect.getclosurevars(one.func).nonlocals["units"] is BYTES else "time"
    return ""


def _kind(kind: Any) -> str:  # Any: an annotation
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _validator_kind(kind.__metadata__) or _kind(parts[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is tuple:
        return f"list of {_kind(parts[0])}" if get_origin(parts[0]) is Literal else "list"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    return {bool: "`true`, `false`", int: "number", float: "number", str: "text", Path: "path"}.get(kind, "map")


def default_of(field: FieldInfo) -> str:
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
    """Return a number as text, with the largest unit in which it is whole."""
    by_kind: dict[str, Mapping[str, float]] = {"size": BYTES, "time": TIMES}
    units = by_kind.get(kind, {})
    for unit, factor in sorted(units.items(), key=lambda one: -one[1]):
        if value and value % factor == 0:
            name = {"kib": "KiB", "mib": "MiB", "gib": "GiB", "kb": "kB", "mb": "MB", "gb": "GB"}.get(unit, unit)
            return f"{value / factor:.0f}{name}"
    return f"{value:g}" if isinstance(value, float) else str(value)
