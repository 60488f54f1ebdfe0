"""Relative paths and references to files mean the folder of the settings file, wherever the daemon is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.settings_files import write_settings

from cdcflow.config import load

TLS = "{cert: a.pem, key: ~/a.key, ca: ca.pem}"
SSH = "ssh: {host: bastion, user: cdc, key_file: keys/id, known_hosts: keys/hosts}"
KEYS = "{access_key: '${file:access}', secret_key: '${file:secret}'}"
POSTGRES = f"""
source: {{kind: postgres, url: postgresql://cdc@db/shop, password: "${{file:pass}}", {SSH}}}
log:
  path: log
  objects: {{url: s3://b/p, cache: cache, access_key: "${{file:access}}", secret_key: "${{file:secret}}"}}
  replicate: {{quorum: ["a:1", "b:1", "c:1"], tls: {TLS}}}
tables: {{public.users: {{columns: {{ssn: {{hash: "${{file:hash}}"}}}}}}}}
person_keys: persons
merge:
  warehouse: s3a://b/w
  format: iceberg
  catalog: {{type: rest, uri: "https://c", token: "${{file:token}}"}}
  objects: {KEYS}
service:
  tokens: [{{name: a, role: read, token: "${{file:token}}"}}]
  tls: {{cert: s.pem, key: s.key}}
  notify: [{{webhook: "${{file:hook}}", on: [stopped]}}]
  lease: {{at: "mysql://cdc@db/", name: shop, password: "${{file:lease}}", tls: {TLS}}}
"""
MYSQL = f"""
source:
  kind: mysql
  url: mysql://cdc@db/
  tables: [shop.*]
  tls: {TLS}
  server_public_key: server.pem
  {SSH}
log:
  kafka: {{brokers: "k:1", topic: t, work: work, history: history, password: "${{file:kafka}}", username: u,
    options: {{security.protocol: SASL_SSL, sasl.mechanism: PLAIN, ssl.ca.location: ca.pem}}}}
service:
  lease: {{at: s3://bucket/lease, objects: {KEYS}}}
"""


def texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The paths and the references to files in settings, with the names of the settings."""
    match value:
        case BaseModel():
            for inner, found in value:
                yield from texts(found, f"{name}.{inner}")
        case tuple() | list():
            for found in value:
                yield from texts(found, name)
        case dict():
            for inner, found in value.items():
                yield from texts(found, f"{name}.{inner}")
        case Path():
            yield name, str(value)
        case str() if value.startswith("${file:"):
            yield name, value[7:-1]


@pytest.mark.parametrize(("text", "at_least"), [(POSTGRES, 23), (MYSQL, 12)])
def test_every_path_and_every_reference_is_below_the_folder_of_the_file(
    tmp_path: Path, text: str, at_least: int
) -> None:
    """systemd starts a daemon in /. A certificate that is found only from one folder stops the next start."""
    found = dict(texts(load(write_settings(tmp_path, text))))
    assert len(found) >= at_least, found
    assert [name for name, path in found.items() if not Path(path).is_absolute() or "~" in path] == []
