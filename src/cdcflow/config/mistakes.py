"""Describes a mistake in the settings in one line: where it is, what is wrong, and what was probably meant."""

from __future__ import annotations

import builtins
import difflib
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdcflow.config.base import Settings, settings_of
from cdcflow.config.plugins import PLUGIN_KIND
from cdcflow.config.setting_paths import SettingMarks, SettingPath, dotted_name, location
from cdcflow.config.sources import PATTERN, MySQL, Postgres
from cdcflow.config.whole import Config

Models = Mapping[SettingPath, type[Settings]]
"""The settings models, each by the place in the file of the settings that it describes."""


def mistake(
    path: Path,
    marks: SettingMarks,
    tagged: SettingPath,
    kind: str,
    message: str,
    given: object,
    plugged: Models | None = None,
    root: type[Settings] = Config,
) -> str:
    """Return one mistake as one line, at the nearest setting that is in the file. `given` is repeated only if it is a
    pattern of tables, because anything else may be a secret in the wrong place. `plugged`: the settings models of
    plug-ins, by the places in the file where they are used. `root`: the model of the whole file."""
    plugged = plugged or {}
    setting, source = (tagged, None) if ("source",) in plugged else _without_tag(tagged)
    models = plugged if source is None else {**plugged, ("source",): source}
    if kind == PLUGIN_KIND:
        setting = (*setting, "kind")
    elif kind == "union_tag_not_found":
        setting, kind = (*setting, "kind"), "missing"
    found = next((marks[setting[:n]] for n in range(len(setting), 0, -1) if setting[:n] in marks), None)
    name = dotted_name(setting)
    match kind:
        case "extra_forbidden":
            text = f"unknown setting {name}{_nearest(setting, models, root)}"
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
    """Return a pattern as an element of a list in YAML, in quotes if it needs them."""
    if re.fullmatch(r"[A-Za-z_][\w.*]*", text):
        return text
    return json.dumps(text, ensure_ascii=False) if "'" in text or '"' not in text else f"'{text}'"


_KINDS: dict[str, type[Settings]] = {"postgres": Postgres, "mysql": MySQL, "mariadb": MySQL}


def _without_tag(setting: SettingPath) -> tuple[SettingPath, type[Settings]]:
    """Return a setting without the kind of source that pydantic inserts, and the settings model of that kind."""
    if len(setting) > 1 and setting[0] == "source" and setting[1] in _KINDS:
        return ("source", *setting[2:]), _KINDS[str(setting[1])]
    return setting, Postgres


def _nearest(setting: SettingPath, models: Models, root: type[Settings]) -> str:
    *parents, wrong = setting
    model = _model_at(tuple(parents), models, root)
    names = [] if model is None else list(settings_of(model))
    kinds = [kind for kind, settings in _KINDS.items() if parents == ["source"] and wrong in settings.model_fields]
    if kinds:
        return f"; known here: {', '.join(names)}. It is a setting of source.kind {' and '.join(kinds)} only"
    close = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {dotted_name((*parents, close[0]))}?"
    elsewhere = [p for p in _all_names(root, (), models) if p[-1] == wrong]
    if elsewhere:
        return f"; it belongs at {dotted_name(elsewhere[0])}"
    return f"; known here: {', '.join(names)}" if names else ""


def _model_at(setting: SettingPath, models: Models, root: type[Settings]) -> type[Settings] | None:
    found: list[type[Settings]] = [root]
    for length, name in enumerate(setting, 1):
        if setting[:length] in models:
            found = [models[setting[:length]]]
        elif not isinstance(name, int):  # elements of a list have the same model, unless a plug-in brings it
            found = [inner for model in found for inner in _inner_models(model, str(name))]
    return found[0] if found else None


def _inner_models(model: type[Settings], name: str) -> list[type[Settings]]:
    field = settings_of(model).get(name)
    return [] if field is None else _models_in(field.annotation)


def _models_in(annotation: Any) -> list[type[Settings]]:  # Any: an annotation
    match typing.get_origin(annotation):
        case types.UnionType | typing.Union | builtins.tuple:
            return [found for part in typing.get_args(annotation) for found in _models_in(part)]
        case typing.Annotated:
            return _models_in(typing.get_args(annotation)[0])
        case _:
            return [annotation] if isinstance(annotation, type) and issubclass(annotation, Settings) else []


def _all_names(model: type[Settings], setting: SettingPath, models: Models) -> list[SettingPath]:
    names: list[SettingPath] = []
    for name in settings_of(model):
        path = (*setting, name)
        inner = [models[path]] if path in models else _inner_models(model, name)
        names += [found for m in inner for found in _all_names(m, path, models)] or [path]
    return names
