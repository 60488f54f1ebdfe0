"""The settings as JSON Schema, for editors: names, types and meanings of everything that `cdcflow.yaml` may have.

It is generated from the settings models, so it knows each setting; what several settings together must be is checked
only when the file is loaded. Kinds that installed packages bring are in it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from cdcflow.config.base import Settings, settings_of
from cdcflow.config.descriptions import default_of, meaning_of
from cdcflow.config.notify import Notify
from cdcflow.config.plugins import NOTIFIERS, SOURCES, TARGETS, TRANSFORMS, PluginGroup, installed_kinds, load_plugin
from cdcflow.config.sources import MySQL, Postgres
from cdcflow.config.units import with_unit
from cdcflow.config.whole import Config

JsonSchema = dict[str, Any]  # Any: JSON
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITION = "#/$defs/{}"
_TEXT_OR_NUMBER: JsonSchema = {"type": ["string", "integer", "boolean"]}
_REFERENCE: JsonSchema = {"type": "string", "pattern": r"^\$\{(env|file):[^}]+\}$"}


_SHORT: dict[str, JsonSchema] = {
    "ColumnKey": _REFERENCE,
    "EncryptionKey": _REFERENCE,
    "ColumnRule": {"enum": ["drop", "mask", "null", None]},
}
"""For a model of settings: the short form that may be written in place of all its settings."""


def _unit_pattern(units: Mapping[str, float]) -> str:
    names = "|".join("".join(f"[{c}{c.upper()}]" for c in unit) for unit in sorted(units, key=len, reverse=True))
    return rf"^\s*\+?\d[\d_]*(\.\d*)?\s*({names})\s*$"


def _text_or(schema: JsonSchema, text: JsonSchema) -> JsonSchema:
    return {"anyOf": [text, schema]}


class _Generator(GenerateJsonSchema):
    """Generates the schema of what a file may contain; pydantic's own would describe the values after validation."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        function = schema["function"]["function"]
        inner = self.generate_inner(schema["schema"])
        name = getattr(function, "__qualname__", "")
        if name.startswith(with_unit.__name__):
            units = inspect.getclosurevars(function).nonlocals["units"]
            return _text_or(inner, {"type": "string", "pattern": _unit_pattern(units)})
        match name:
            case "by_reference":
                return {"anyOf": [_REFERENCE, {"type": "null"}]}
            case "_reference_or_command":
                return {"anyOf": [_REFERENCE, *(one for one in inner["anyOf"] if one != {"type": "string"})]}
            case "EncryptionKey._one_name":
                return _text_or(inner, {"type": "string"})
            case "_off":
                return {"anyOf": [inner, {"const": False}]}
            case str() if name.endswith("._texts"):
                return {"type": "object", "additionalProperties": _TEXT_OR_NUMBER}
        return inner

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model = schema["cls"]
        made.pop("title", None)
        made["description"] = _plain(inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0])
        for name, field in settings_of(model).items():
            own = next(attribute for attribute, one in model.model_fields.items() if one is field)
            text, default = meaning_of(model, own)
            _explain(made["properties"][name], text, default or default_of(field))
        return {"anyOf": [_SHORT[model.__name__], made]} if model.__name__ in _SHORT else made


def _explain(setting: JsonSchema, text: str, default: str) -> None:
    setting.pop("title", None)
    setting.pop("default", None)
    if text:
        setting["description"] = _plain(f"{text} Default: {default}." if default not in ("", "required") else text)


def _plain(markdown: str) -> str:
    """Return a text without its links, which lead nowhere in an editor."""
    return " ".join(re.sub(r"\s*\(\[[^\]]*\]\([^)]*\)\)|\[([^\]]*)\]\([^)]*\)", r"\1", markdown).split())


def settings_schema() -> JsonSchema:
    """Return the schema of a settings file, with the kinds of plug-ins that are installed and can be imported."""
    plugged = {group.name: _plugin_models(group) for group in (SOURCES, NOTIFIERS, TARGETS, TRANSFORMS)}
    models: list[type[Settings]] = [Config, *(model for kinds in plugged.values() for model in kinds.values())]
    listed = [(model, "validation") for model in dict.fromkeys(models)]
    references, made = models_json_schema(listed, schema_generator=_Generator)  # type: ignore[arg-type]  # a literal
    parts: JsonSchema = made["$defs"]

    def kinds(group: PluginGroup, own: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
        of_plugins = {kind: references[model, "validation"] for kind, model in plugged[group.name].items()}
        return _by_kind({**(own or {}), **of_plugins})

    own: dict[str, type[Settings]] = {"postgres": Postgres, "mysql": MySQL, "mariadb": MySQL}
    whole = parts.pop("Config")
    properties = whole["properties"]
    sources = kinds(SOURCES, {kind: {"$ref": _DEFINITION.format(model.__name__)} for kind, model in own.items()})
    properties["source"] = sources | {"description": _plain(Postgres.__doc__ or "")}
    properties["log"] = _if("kafka", {"$ref": _DEFINITION.format("KafkaLog")}, {"$ref": _DEFINITION.format("FileLog")})
    properties["targets"]["additionalProperties"] = kinds(TARGETS)
    parts["Service"]["properties"]["notify"]["items"] = _if(
        "kind", kinds(NOTIFIERS), {"$ref": _DEFINITION.format(Notify.__name__)}
    )
    computed = parts["TableRules"]["properties"]["computed"]
    computed["additionalProperties"] = {"anyOf": [{"type": "string"}, kinds(TRANSFORMS)]}
    _without_path(parts["FileLog"])
    _move_bounds(parts)
    return {
        "$schema": DIALECT,
        "title": "cdcflow.yaml",
        **whole,
        "required": ["log"],
        **_if("serve", {"not": {"required": ["source"]}}, {"required": ["source"]}),
        "$defs": _definitions_of(parts, whole),
    }


def _plugin_models(group: PluginGroup) -> dict[str, type[Settings]]:
    """Return the models of installed kinds. Those that cannot be used are missing; `cdcflow plugins` reports them."""
    found = {}
    for kind in installed_kinds(group):
        try:
            found[kind] = load_plugin(group, kind).settings
        except LookupError:
            continue
    return found


def _by_kind(kinds: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return a schema in which `kind` decides which settings there are."""
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(kinds)}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": schema}
            for kind, schema in kinds.items()
        ],
    }


def _if(name: str, then: JsonSchema, otherwise: JsonSchema) -> JsonSchema:
    return {"if": {"required": [name]}, "then": then, "else": otherwise}


def _without_path(file_log: JsonSchema) -> None:
    """Make the path optional in the schema of a log in files: a log that is only read from its store needs none."""
    file_log["required"] = [name for name in file_log.get("required", []) if name != "path"]
    file_log["anyOf"] = [{"required": ["path"]}, {"required": ["objects"]}]


def _move_bounds(schema: Any) -> None:  # Any: JSON
    """Move the bounds of each amount into that alternative of its schema which is a number. The other one is a text
    with a unit, whose bounds a schema cannot express."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _move_bounds(inner)
    if not isinstance(schema, dict) or "anyOf" not in schema:
        return
    for name, keyword in (("gt", "exclusiveMinimum"), ("ge", "minimum")):
        if isinstance(least := schema.get(name), int | float):
            schema.pop(name)
            for one in schema["anyOf"]:
                if one.get("type") in ("integer", "number"):
                    one[keyword] = least


def _definitions_of(parts: JsonSchema, whole: JsonSchema) -> JsonSchema:
    """Return the definitions that the schema refers to, also through others."""
    found: dict[str, JsonSchema] = {}
    pending = [whole]
    while pending:
        for name in re.findall(r"#/\$defs/([\w.-]+)", repr(pending.pop())):
            if name not in found:
                found[name] = parts[name]
                pending.append(parts[name])
    return dict(sorted(found.items()))
