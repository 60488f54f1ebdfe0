"""Describes a mistake in the settings in one line: where it is, what is wrong, and what was probably meant."""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from pathlib import Path

from cdcflow.config.base import Settings
from cdcflow.config.plugins import SOURCE_KIND
from cdcflow.config.setting_paths import SettingMarks, SettingPath, dotted_name, location
from cdcflow.config.sources import PATTERN, MySQL, Postgres
from cdcflow.config.whole import Config


def mistake(
    path: Path,
    marks: SettingMarks,
    tagged: SettingPath,
    kind: str,
    message: str,
    given: object,
    plugged: type[Settings] | None = None,
) -> str:
    """One mistake as one line, at the nearest setting that is in the file. `given` is repeated only if it is a pattern
    of tables: anything else may be a secret in the wrong place. `plugged`: the settings of the file's source, if a
    plug-in brings them."""
    setting, source = (tagged, plugged) if plugged is not None else _without_tag(tagged)
    if kind == SOURCE_KIND:
        setting = (*setting, "kind")
    elif kind == "union_tag_not_found":
        setting, kind = (*setting, "kind"), "missing"
    found = next((marks[setting[:n]] for n in range(len(setting), 0, -1) if setting[:n] in marks), None)
    name = dotted_name(setting)
    match kind:
        case "extra_forbidden":
            text = f"unknown setting {name}{_nearest(setting, source)}"
        case "missing":
            text = f"{name} is missing"
        case "tuple_type":
            text = f"{name} must be a list: {_as_list(setting, given)}"
        case _:
            text = f"{name} {message.removeprefix('Value error, ').replace('Input should be', 'must be')}"
    return f"{location(path, found)}: {text}"


def _as_list(setting: SettingPath, given: object) -> str:
    if setting != ("source", "tables"):
        return "[…]"
    texts = [text.strip() for text in given.split(",")] if isinstance(given, str) else []
    if not texts or not all(PATTERN.fullmatch(text) for text in texts):
        return "[schema.table]"
    return f"[{', '.join(_in_yaml(text) for text in texts)}]"


def _in_yaml(text: str) -> str:
    """A pattern as an element of a list in YAML, in quotes if it needs them."""
    if re.fullmatch(r"[A-Za-z_][\w.*]*", text):
        return text
    return json.dumps(text, ensure_ascii=False) if "'" in text or '"' not in text else f"'{text}'"


_KINDS: dict[str, type[Settings]] = {"postgres": Postgres, "mysql": MySQL, "mariadb": MySQL}


def _without_tag(setting: SettingPath) -> tuple[SettingPath, type[Settings]]:
    """A setting without the kind of source that pydantic inserts, and the settings model of that kind."""
    if len(setting) > 1 and setting[0] == "source" and setting[1] in _KINDS:
        return ("source", *setting[2:]), _KINDS[str(setting[1])]
    return setting, Postgres


def _nearest(setting: SettingPath, source: type[Settings]) -> str:
    *parents, wrong = setting
    model = _model_at(tuple(parents), source)
    names = [] if model is None else list(model.model_fields)
    kinds = [kind for kind, settings in _KINDS.items() if parents == ["source"] and wrong in settings.model_fields]
    if kinds:
        return f"; known here: {', '.join(names)}. It is a setting of source.kind {' and '.join(kinds)} only"
    close = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {dotted_name((*parents, close[0]))}?"
    elsewhere = [p for p in _all_names(Config, (), source) if p[-1] == wrong]
    if elsewhere:
        return f"; it belongs at {dotted_name(elsewhere[0])}"
    return f"; known here: {', '.join(names)}" if names else ""


def _model_at(setting: SettingPath, source: type[Settings]) -> type[Settings] | None:
    models: list[type[Settings]] = [Config]
    for name in setting:
        if isinstance(name, int):
            continue  # an element of a list; all have the same model
        models = [inner for model in models for inner in _inner_models(model, str(name), source)]
    return models[0] if models else None


def _inner_models(model: type[Settings], name: str, source: type[Settings]) -> list[type[Settings]]:
    if model is Config and name == "source":
        return [source]
    field = model.model_fields.get(name)
    if field is None:
        return []
    annotation = field.annotation
    is_several = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is tuple
    choices = typing.get_args(annotation) if is_several else (annotation,)
    return [c for c in choices if isinstance(c, type) and issubclass(c, Settings)]


def _all_names(model: type[Settings], setting: SettingPath, source: type[Settings]) -> list[SettingPath]:
    names: list[SettingPath] = []
    for name in model.model_fields:
        inner = _inner_models(model, name, source)
        names += [found for m in inner for found in _all_names(m, (*setting, name), source)] or [(*setting, name)]
    return names
