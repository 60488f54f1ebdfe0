"""Resolves relative paths in the settings against the folder of the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from cdcflow.config.access import ServerTls
from cdcflow.config.base import Settings
from cdcflow.config.collections import Collection, Serve
from cdcflow.config.columns import ColumnRule, TableRules
from cdcflow.config.fleet import Fleet, FleetMembership, FleetRegister
from cdcflow.config.lease import LeaseSettings
from cdcflow.config.logs import FileLog, Kafka, KafkaLog, StoreAccess
from cdcflow.config.notify import NotifierSettings, Notify
from cdcflow.config.passwords import PasswordCommand
from cdcflow.config.publish import Publish, PublishKafka
from cdcflow.config.references import is_reference
from cdcflow.config.sources import MySQL, Postgres, SourceSettings
from cdcflow.config.whole import Config, Merge, Service

S = TypeVar("S", bound=Settings)

_CERTIFICATES = ("ca", "cert", "key")
_PATHS = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
)


def rebase(config: Config, folder: Path) -> Config:
    source = config.source
    if isinstance(source, Postgres | MySQL):
        ssh = None if source.ssh is None else _files_below(source.ssh, folder, "key_file", "known_hosts")
        source = source.model_copy(update={"password": _password_below(folder, source.password), "ssh": ssh})
    if isinstance(source, MySQL):
        key = _below(folder, source.server_public_key)
        tls = _files_below(source.tls, folder, *_CERTIFICATES)
        source = source.model_copy(update={"tls": tls, "server_public_key": key})
    if isinstance(source, SourceSettings) and not isinstance(source, Postgres | MySQL):
        source = _with_paths(source, folder)
    return config.model_copy(
        update={
            "source": source,
            "log": _rebased_log(config.log, folder),
            "tables": {name: _rebased_rules(rules, folder) for name, rules in config.tables.items()},
            "person_keys": _below(folder, config.person_keys),
            "merge": _rebased_merge(config.merge, folder),
            "service": _rebased_service(config.service, folder),
            "targets": {name: _with_paths(target, folder) for name, target in config.targets.items()},
            "serve": None if config.serve is None else _rebased_serve(config.serve, folder),
            "tests": tuple(folder / path.expanduser() for path in config.tests),
            "publish": None if config.publish is None else Publish(kafka=_rebased_topics(config.publish.kafka, folder)),
        }
    )


def _with_paths(value: Any, folder: Path) -> Any:  # Any: a value in the settings of a plug-in
    """Return a plug-in's settings with every path in them, and every reference to a file, resolved."""
    match value:
        case Settings():
            return value.model_copy(update={name: _with_paths(inner, folder) for name, inner in value})
        case Path():
            return _below(folder, value)
        case str():
            return _reference_below(folder, value) if is_reference(value) else value
        case tuple():
            return tuple(_with_paths(inner, folder) for inner in value)
        case dict():
            return {name: _with_paths(inner, folder) for name, inner in value.items()}
        case _:
            return value


def _rebased_rules(rules: TableRules, folder: Path) -> TableRules:
    def rebased_rule(rule: ColumnRule) -> ColumnRule:
        keys = {kind: key for kind in ("hash", "encrypt") if (key := getattr(rule, kind)) is not None}
        moved = {kind: key.model_copy(update={"key": _reference_below(folder, key.key)}) for kind, key in keys.items()}
        return rule.model_copy(update=moved)

    columns = {name: rebased_rule(rule) for name, rule in rules.columns.items()}
    return rules.model_copy(update={"columns": columns, "computed": _with_paths(rules.computed, folder)})


def _rebased_merge(merge: Merge, folder: Path) -> Merge:
    place = merge.warehouse
    return merge.model_copy(
        update={
            "warehouse": place if isinstance(place, str) else folder / place.expanduser(),
            "objects": None if merge.objects is None else merge.objects.model_copy(update=_keys(merge.objects, folder)),
            "catalog": None
            if merge.catalog is None
            else {k: str(_reference_below(folder, v)) if is_reference(v) else v for k, v in merge.catalog.items()},
        }
    )


def _rebased_service(service: Service, folder: Path) -> Service:
    tokens = [t.model_copy(update={"token": _reference_below(folder, t.token)}) for t in service.tokens]
    notify = tuple(_rebased_receiver(receiver, folder) for receiver in service.notify)
    return service.model_copy(
        update={
            "tokens": tuple(tokens),
            "notify": notify,
            "tls": _rebased_tls(service.tls, folder),
            "lease": None if service.lease is None else _rebased_lease(service.lease, folder),
            "fleet": None if service.fleet is None else _rebased_membership(service.fleet, folder),
        }
    )


def _rebased_lease(lease: LeaseSettings, folder: Path) -> LeaseSettings:
    objects = lease.objects
    return lease.model_copy(
        update={
            "password": _password_below(folder, lease.password),
            "tls": _files_below(lease.tls, folder, *_CERTIFICATES),
            "objects": None if objects is None else objects.model_copy(update=_keys(objects, folder)),
        }
    )


def _rebased_membership(membership: FleetMembership, folder: Path) -> FleetMembership:
    return membership.model_copy(update=_rebased_place(membership, folder))


def _rebased_place(register: FleetRegister, folder: Path) -> dict[str, object]:
    objects = register.objects
    return {
        "at": register.at if isinstance(register.at, str) else folder / register.at.expanduser(),
        "objects": None if objects is None else objects.model_copy(update=_keys(objects, folder)),
    }


def rebase_fleet(fleet: Fleet, folder: Path) -> Fleet:
    tokens = [t.model_copy(update={"token": _reference_below(folder, t.token)}) for t in fleet.tokens]
    registers = [one.model_copy(update=_rebased_place(one, folder)) for one in fleet.registers]
    members = [
        one.model_copy(update={"token": _reference_below(folder, one.token), "ca": _below(folder, one.ca)})
        for one in fleet.members
    ]
    places = {"tokens": tuple(tokens), "registers": tuple(registers), "members": tuple(members)}
    return fleet.model_copy(update={**places, "tls": _rebased_tls(fleet.tls, folder)})


def _rebased_receiver(receiver: Notify | NotifierSettings, folder: Path) -> Notify | NotifierSettings:
    if isinstance(receiver, Notify):
        webhook, file = _reference_below(folder, receiver.webhook), _below(folder, receiver.file)
        return receiver.model_copy(update={"webhook": webhook, "file": file})
    return cast("NotifierSettings", _with_paths(receiver, folder))


def _rebased_serve(serve: Serve, folder: Path) -> Serve:
    def rebased_collection(one: Collection) -> Collection:
        place = one.json_schema
        return one.model_copy(update={"json_schema": _below(folder, place)}) if isinstance(place, Path) else one

    tokens = [t.model_copy(update={"token": _reference_below(folder, t.token)}) for t in serve.tokens]
    collections = [rebased_collection(one) for one in serve.collections]
    tls = _rebased_tls(serve.tls, folder)
    return serve.model_copy(update={"tokens": tuple(tokens), "collections": tuple(collections), "tls": tls})


def _rebased_tls(tls: ServerTls | None, folder: Path) -> ServerTls | None:
    if tls is None:
        return None
    return _files_below(tls, folder, "cert", "key")


def _files_below(settings: S, folder: Path, *names: str) -> S:
    """Return the settings with the paths in these fields resolved against the folder."""
    return settings.model_copy(update={name: _below(folder, getattr(settings, name)) for name in names})


def _keys(access: StoreAccess, folder: Path) -> dict[str, str | None]:
    names = ("access_key", "secret_key", "account_key", "service_account")
    return {name: _reference_below(folder, getattr(access, name)) for name in names if hasattr(access, name)}


def _rebased_log(log: FileLog | KafkaLog, folder: Path) -> FileLog | KafkaLog:
    match log:
        case FileLog():
            return _rebased_files(log, folder)
        case KafkaLog(kafka=kafka):
            return log.model_copy(update={"kafka": _rebased_kafka(kafka, folder)})


def _rebased_files(log: FileLog, folder: Path) -> FileLog:
    objects = log.objects
    if objects is not None:
        objects = objects.model_copy(update={**_keys(objects, folder), "cache": _below(folder, objects.cache)})
    if objects is not None and not log.has_directory:
        return FileLog(seal=log.seal, objects=objects)  # type: ignore[call-arg]  # the path is the store's cache
    replicate = log.replicate
    if replicate is not None and replicate.tls is not None:
        replicate = replicate.model_copy(update={"tls": _files_below(replicate.tls, folder, *_CERTIFICATES)})
    path = folder / log.path.expanduser()
    return log.model_copy(update={"objects": objects, "path": path, "replicate": replicate})


def _rebased_kafka(kafka: Kafka, folder: Path) -> Kafka:
    objects = kafka.objects
    return kafka.model_copy(
        update={
            "work": _below(folder, kafka.work or Path(".cdcflow")),
            "history": kafka.history if isinstance(kafka.history, str) else _below(folder, kafka.history),
            "objects": None if objects is None else objects.model_copy(update=_keys(objects, folder)),
            "options": _rebased_options(kafka.options, folder),
            "password": _reference_below(folder, kafka.password),
        }
    )


def _rebased_topics(kafka: PublishKafka, folder: Path) -> PublishKafka:
    registry = kafka.registry
    if registry is not None:
        registry = registry.model_copy(update={"password": _reference_below(folder, registry.password)})
    return kafka.model_copy(
        update={
            "options": _rebased_options(kafka.options, folder),
            "password": _reference_below(folder, kafka.password),
            "registry": registry,
        }
    )


def _rebased_options(options: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Options of Kafka's library, with the paths of files and the references to files resolved."""
    return {
        name: str(folder / Path(value).expanduser())
        if name in _PATHS and value != "probe"
        else _reference_below(folder, value) or value
        for name, value in options.items()
    }


def _reference_below(folder: Path, reference: str | None) -> str | None:
    """Return a reference to a file, resolved against the folder of the settings file."""
    if reference is None or not reference.startswith("${file:"):
        return reference
    return f"${{file:{folder / Path(reference[7:-1]).expanduser()}}}"


def _password_below(folder: Path, password: str | PasswordCommand | None) -> str | PasswordCommand | None:
    return password if isinstance(password, PasswordCommand) else _reference_below(folder, password)


def _below(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path.expanduser()
