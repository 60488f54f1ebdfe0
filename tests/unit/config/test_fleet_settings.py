"""The settings of a fleet, and of a pipeline that belongs to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow.config import Config, load, load_fleet
from cdcflow.errors import ConfigurationError

PIPELINE = """
source: {{kind: postgres, url: "postgresql://localhost/shop", tables: [public.orders]}}
log: {{path: log}}
service: {{fleet: {{{fleet}}}}}
"""


def pipeline(folder: Path, fleet: str) -> Config:
    (folder / "cdcflow.yaml").write_text(PIPELINE.format(fleet=fleet))
    return load(folder / "cdcflow.yaml")


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("fleet", "{folder}/fleet"),
        ("/srv/fleet", "/srv/fleet"),
        ("file:///srv/fleet", "/srv/fleet"),
        ("s3://b/x/", "s3://b/x"),
    ],
)
def test_register_is_a_folder_or_a_bucket(tmp_path: Path, given: str, at: str) -> None:
    """Relative to the settings file, as all paths."""
    found = pipeline(tmp_path, f'at: "{given}", name: shop').service.fleet
    assert found is not None
    assert str(found.at) == at.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ("at: fleet", "service.fleet.name is missing"),
        ("at: 'http://host', name: shop", "service.fleet.at must be a folder, or a URL such as s3://"),
        ("at: fleet, name: 'a/b'", "service.fleet.name must be at most 100 letters"),
        ("at: fleet, name: shop, every: 1h", "service.fleet.every must be from 1s to 10m"),
        ("at: fleet, name: shop, page: 'javascript:alert(1)'", "service.fleet.page must be a URL"),
        ("at: fleet, name: shop, page: 'https://a:b@host/'", "service.fleet.page must be a URL"),
        ("at: fleet, name: shop, objects: {region: x}", "has objects, which only a place in an object store"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, fleet: str, why: str) -> None:
    """A pipeline that is not on the page is forgotten."""
    with pytest.raises(ConfigurationError, match=why):
        pipeline(tmp_path, fleet)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("listen: 127.0.0.1:1", "has neither registers nor members"),
        ("registers: [{at: fleet}]\nlisten: 0.0.0.0:8070", "has no token: listen on 127.0.0.1, or set tokens"),
        ("registers: [{at: fleet, nme: x}]", r"unknown setting registers\[0\].nme"),
        ("members: [{name: shop, url: 'https://h/', token: abc}]", "token must be a reference"),
        ("members: [{name: shop, url: 'http://h/', ca: ca.pem}]", "has ca, and its url is not https://"),
    ],
)
def test_mistakes_in_the_fleets_own_file_are_named(tmp_path: Path, text: str, why: str) -> None:
    """It is a second kind of settings file, with the same errors."""
    (tmp_path / "fleet.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        load_fleet(tmp_path / "fleet.yaml")


def test_paths_of_the_fleets_file_are_relative_to_it(tmp_path: Path) -> None:
    """It is started from anywhere."""
    (tmp_path / "fleet.yaml").write_text(
        "registers: [{at: place}]\n"
        "members: [{name: shop, url: 'https://h/', token: '${file:token}', ca: ca.pem}]\n"
        "tls: {cert: a.pem}\ntokens: [{name: ops, token: '${file:ops}'}]"
    )
    found = load_fleet(tmp_path / "fleet.yaml")
    assert (found.registers[0].at, found.members[0].ca) == (tmp_path / "place", tmp_path / "ca.pem")
    assert found.members[0].token == f"${{file:{tmp_path}/token}}"
    assert found.tokens[0].token == f"${{file:{tmp_path}/ops}}"
    assert found.tls is not None
    assert found.tls.cert == tmp_path / "a.pem"
