"""A mistake in the settings as one line: where it stands, what is wrong, and what was meant, if that can be told."""

from __future__ import annotations

import difflib
import types
import typing
from pathlib import Path

from cdcflow.config.base import Settings
from cdcflow.config.places import Place, Places, at, dotted
from cdcflow.config.sources import MySQL, Postgres
from cdcflow.config.whole import Config


def mistake(path: Path, places: Places, tagged: Place, kind: str, message: str) -> str:
    """One mistake as one line, at the nearest place that stands in the file."""
    place, source = _untagged(tagged)
    if kind == "union_tag_invalid":
        place, message = (*place, "kind"), f"must be {_one_of(list(_KINDS))}"
    elif kind == "union_tag_not_found":
        place, kind = (*place, "kind"), "missing"
    found = next((places[place[:n]] for n in range(len(place), 0, -1) if place[:n] in places), None)
    name = dotted(place)
    match kind:
        case "extra_forbidden":
            text = f"unknown setting {name}{_nearest(place, source)}"
        case "missing":
            text = f"{name} is missing"
        case _:
            text = f"{name} {message.removeprefix('Value error, ').replace('Input should be', 'must be')}"
    return f"{at(path, found)}: {text}"


_KINDS: dict[str, type[Settings]] = {"postgres": Postgres, "mysql": MySQL, "mariadb": MySQL}


def _untagged(place: Place) -> tuple[Place, type[Settings]]:
    """A place without the kind of source that pydantic puts into it, and the settings of that kind."""
    if len(place) > 1 and place[0] == "source" and place[1] in _KINDS:
        return ("source", *place[2:]), _KINDS[str(place[1])]
    return place, Postgres


def _one_of(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:-1]) + f" or '{names[-1]}'"


def _nearest(place: Place, source: type[Settings]) -> str:
    *parents, wrong = place
    model = _model_at(tuple(parents), source)
    names = [] if model is None else list(model.model_fields)
    close = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {dotted((*parents, close[0]))}?"
    elsewhere = [p for p in _all_names(Config, (), source) if p[-1] == wrong]
    if elsewhere:
        return f"; it belongs at {dotted(elsewhere[0])}"
    return f"; known here: {', '.join(names)}" if names else ""


def _model_at(place: Place, source: type[Settings]) -> type[Settings] | None:
    models: list[type[Settings]] = [Config]
    for name in place:
        models = [inner for model in models for inner in _inner_models(model, str(name), source)]
    return models[0] if models else None


def _inner_models(model: type[Settings], name: str, source: type[Settings]) -> list[type[Settings]]:
    if model is Config and name == "source":
        return [source]
    field = model.model_fields.get(name)
    if field is None:
        return []
    annotation = field.annotation
    choices = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return [c for c in choices if isinstance(c, type) and issubclass(c, Settings)]


def _all_names(model: type[Settings], place: Place, source: type[Settings]) -> list[Place]:
    names: list[Place] = []
    for name in model.model_fields:
        inner = _inner_models(model, name, source)
        names += [found for m in inner for found in _all_names(m, (*place, name), source)] or [(*place, name)]
    return names


__all__ = ["mistake"]
