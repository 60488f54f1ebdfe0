"""Settings with collections instead of a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.settings_files import write_settings

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.errors import ConfigurationError

SERVE = """
serve:
  tokens: [{name: shop, role: operate, token: "${file:token}"}]
  collections:
    - {name: orders, key: [id], json_schema: schemas/orders.json}
"""
LOG = "log: {path: log}\n"
SOURCE = "source: {kind: postgres, url: postgresql://cdc@db/shop}\n"


def test_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    """Also those of schemas and tokens: a daemon is started from anywhere."""
    config = load(write_settings(tmp_path, SERVE + LOG))
    assert config.serve is not None
    assert config.serve.collections[0].json_schema == tmp_path / "schemas" / "orders.json"
    assert config.serve.tokens[0].token == f"${{file:{tmp_path}/token}}"
    assert (config.serve.listen, config.source.kind) == ("127.0.0.1:8080", "push")


@pytest.mark.parametrize(
    ("text", "said", "mended"),
    [
        (SERVE + SOURCE + LOG, "serve and source are both set", SERVE + LOG),
        ("source: {kind: push}\n" + LOG, "source.kind is push, and serve is not set", SERVE + LOG),
        (
            SERVE + "log: {path: log, index: false}\n",
            "set log.index to true",
            SERVE + "log: {path: log, index: true}\n",
        ),
        (
            SERVE + "log: {path: log, retention: {age: 7d}}\n",
            "set log.retention.state to true",
            SERVE + "log: {path: log, retention: {age: 7d, state: true}}\n",
        ),
        (SERVE + "log: {kafka: {brokers: 'k:9092', topic: t}}\n", "set log.path", SERVE + LOG),
        (SERVE + LOG + "service: {lease: {at: file}}\n", "`cdcflow serve` has no standby", SERVE + LOG),
        (SERVE.replace("name: orders", "name: _orders") + LOG, "must be a name of a-z", SERVE + LOG),
        (
            SERVE.replace("serve:", "serve:\n  listen: 0.0.0.0:80").replace("tokens", "hosts: []  #") + LOG,
            "serve.tokens",
            SERVE + LOG,
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_and_the_remedy_works(
    tmp_path: Path, text: str, said: str, mended: str
) -> None:
    """Each of them would lose rows, or accept them from anyone."""
    with pytest.raises(ConfigurationError) as caught:
        load(write_settings(tmp_path, text))
    assert said in str(caught.value)
    load(write_settings(tmp_path, mended))


def test_commands_of_a_capture_report_that_there_is_no_database(tmp_path: Path) -> None:
    """And the other way round: `cdcflow serve` needs collections."""
    with pytest.raises(ConfigurationError, match="run `cdcflow serve`"):
        wiring.open_source(load(write_settings(tmp_path, SERVE + LOG)))
    with pytest.raises(ConfigurationError, match=r"set serve\.collections"):
        wiring.open_push_log(load(write_settings(tmp_path, SOURCE + LOG)), lambda event, fields: None)
