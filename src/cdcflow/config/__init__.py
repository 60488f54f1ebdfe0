"""Settings: one file, `cdcflow.yaml`, parsed once into frozen models. The names here are the names everywhere.

    loading ─▶ setting_paths (YAML) ─▶ whole: sources, logs, publishing ─▶ folders ─▶ Config
                                └─ mistakes: one line each, with its position in the file

Secrets are references (`${env:NAME}`, `${file:path}`) and are resolved at each use, so that a rotated secret takes
effect.
"""

from __future__ import annotations

from cdcflow.config.access import ROLES, AccessToken, Role, ServerTls, is_loopback
from cdcflow.config.base import Settings
from cdcflow.config.collections import Collection, Idempotency, Push, Serve
from cdcflow.config.fleet import Fleet, FleetMember, FleetMembership, FleetRegister
from cdcflow.config.lease import LeaseSettings
from cdcflow.config.logs import FileLog, Kafka, KafkaLog, Objects, Seal, StoreAccess
from cdcflow.config.notify import NotifierSettings, Notify
from cdcflow.config.passwords import PasswordCommand
from cdcflow.config.publish import (
    BinaryMode,
    DecimalMode,
    FormatName,
    IntervalMode,
    Publish,
    PublishKafka,
    Registry,
    TimeMode,
    UnsignedMode,
)
from cdcflow.config.references import is_reference, secret
from cdcflow.config.settings_file import load, load_fleet, without_reading_limits
from cdcflow.config.sources import Backfill, MySQL, Postgres, Special, Tls
from cdcflow.config.ssh import Ssh
from cdcflow.config.targets import TargetSettings
from cdcflow.config.units import byte_count, seconds
from cdcflow.config.whole import Config, Merge, Service

__all__ = [
    "ROLES",
    "AccessToken",
    "Backfill",
    "BinaryMode",
    "Collection",
    "Config",
    "DecimalMode",
    "FileLog",
    "Fleet",
    "FleetMember",
    "FleetMembership",
    "FleetRegister",
    "FormatName",
    "IntervalMode",
    "Idempotency",
    "Kafka",
    "KafkaLog",
    "LeaseSettings",
    "Merge",
    "MySQL",
    "NotifierSettings",
    "Notify",
    "Objects",
    "PasswordCommand",
    "Postgres",
    "Publish",
    "PublishKafka",
    "Push",
    "Registry",
    "Role",
    "Seal",
    "Serve",
    "ServerTls",
    "Service",
    "Settings",
    "Special",
    "Ssh",
    "StoreAccess",
    "TargetSettings",
    "TimeMode",
    "Tls",
    "UnsignedMode",
    "byte_count",
    "is_loopback",
    "is_reference",
    "load",
    "load_fleet",
    "seconds",
    "secret",
    "without_reading_limits",
]
