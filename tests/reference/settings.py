"""The tables of docs/settings.md, and of pages about plug-ins, generated from the settings models."""

from __future__ import annotations

from cdcflow.config.collections import Serve
from cdcflow.config.columns import TableRules
from cdcflow.config.contracts import ColumnContract
from cdcflow.config.descriptions import Setting, describe
from cdcflow.config.fleet import Fleet
from cdcflow.config.logs import FileLog, KafkaLog
from cdcflow.config.publish import Publish
from cdcflow.config.sources import MySQL, Postgres, SourceSettings
from cdcflow.config.targets import TargetSettings
from cdcflow.config.whole import Config, Merge, Service
from cdcflow_files import FilesSettings


def sections() -> dict[str, list[Setting]]:
    """The rows of each table, by the name of its marker."""
    postgres, mysql = list(describe(Postgres, "source.")), list(describe(MySQL, "source."))
    names = {one.name for one in postgres} & {one.name for one in mysql}
    whole = list(describe(Config, ""))
    own = [f"source.{name}" for name in Postgres.__annotations__]
    postgres.sort(key=lambda one: one.name not in own)  # kind, url and tables first
    return {
        "source": [_of_both(one, mysql) for one in postgres if one.name in names],
        "postgres": [one for one in postgres if one.name not in names],
        "mysql": [one for one in mysql if one.name not in names],
        "log": list(describe(FileLog, "log.")),
        "kafka": list(describe(KafkaLog, "log.")),
        "tables": [*describe(TableRules, "tables."), *(one for one in whole if one.name == "person_keys")],
        "contracts": list(describe(ColumnContract, "contracts.")),
        "merge": list(describe(Merge, "merge.")),
        "publish": list(describe(Publish, "publish.")),
        "targets": list(describe(TargetSettings, "targets.")),
        "service": list(describe(Service, "service.")),
        "serve": list(describe(Serve, "serve.")),
        "tests": [one for one in whole if one.name == "tests"],
    }


def table(settings: list[Setting]) -> str:
    if missing := [one.name for one in settings if not one.meaning]:
        raise LookupError(f"{missing} have no docstring below them")
    head = ("| name | value | default | meaning | applied |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *(one.row() for one in settings)))


def _of_both(one: Setting, others: list[Setting]) -> Setting:
    """A setting of all databases: `source.kind` has the values of both models."""
    (other,) = (setting for setting in others if setting.name == one.name)
    values = one.values if one.values == other.values else f"{one.values}, {other.values}"
    return Setting(one.name, values, one.default, one.meaning)


def markdown() -> dict[str, str]:
    """Each table by the name of its marker."""
    return {name: table(settings) for name, settings in sections().items()}


def fleet_markdown() -> dict[str, str]:
    """The table of docs/fleet.md: the settings file of `cdcflow fleet`."""
    return {"fleet": table(list(describe(Fleet, "")))}


def files_markdown() -> dict[str, str]:
    """The table of docs/files.md: the settings that only this kind of source has."""
    common = {one.name for one in describe(SourceSettings, "source.")}
    return {"files": table([one for one in describe(FilesSettings, "source.") if one.name not in common])}
