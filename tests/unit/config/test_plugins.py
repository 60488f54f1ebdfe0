"""Kinds of sources that other packages bring: which one a settings file gets, and the error otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.plugins import install, install_target_of_the_template, on_path
from tests.support.settings_files import complaint, write_settings
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import Config, load, secret
from cdcflow.config.changes import settings_as_text
from cdcflow.errors import ConfigurationError

SHOP = """
from pathlib import Path
from cdcflow.config.references import SecretReference
from cdcflow.config.base import Settings
from cdcflow.ports import SourcePlugin, SourceSettings
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.model.table import TableId
from cdcflow.sources.memory_database import INTEGER

class Access(Settings):
    key: SecretReference = None
    certificate: Path | None = None

class ShopSettings(SourceSettings):
    server: str
    access: Access = Access()

def open_source(settings):
    database = MemoryDatabase(settings.server)
    database.create(TableId("public", "items"), {"id": INTEGER}, ("id",))
    return MemorySource(database, settings.tables)

plugin = SourcePlugin(
    ports=1,
    settings=ShopSettings,
    open=open_source,
    address=lambda settings: f"shop {settings.server}",
    leftovers=lambda settings: [("the shop", "close it")],
)
"""
WHOLE = "source:\n  kind: shop\n  server: one\nlog: {path: shop-log}\n"
POSTGRES = "source: {kind: postgres, url: 'postgresql://cdc@db/shop'}\nlog: {path: shop-log}\n"


@contextmanager
def shop(folder: Path, code: str = SHOP, kinds: Mapping[str, str] | None = None) -> Iterator[None]:
    """A plug-in with the kind `shop` is installed."""
    with on_path(install(folder / "packages", "cdcflow-shop", kinds or {"shop": "cdcflow_shop:plugin"}, code)):
        yield


def test_kind_of_a_plug_in_has_the_plug_in_s_settings_and_source(tmp_path: Path) -> None:
    """A source is added without a fork: its package has settings, doctor and what is left."""
    with shop(tmp_path):
        config = load(write_settings(tmp_path, WHOLE))
        assert (config.source.kind, config.database.heartbeat) == ("shop", 10.0)
        source = wiring.open_source(config)
        assert [str(table.id) for table in source.tables()] == ["public.items"]
        source.close()
        assert wiring.addresses(config) == {"source": "shop one"}
        assert wiring.leftovers(config)[-1] == ("the shop", "close it")
        assert wiring.control_table(config) is None
        assert [found.level for found in wiring.doctor(config)] == ["ok"]
        assert settings_as_text(config)["source.server"] == "one"


def test_paths_and_references_of_a_plug_in_begin_at_the_settings_file(tmp_path: Path) -> None:
    """As all other paths; a plug-in does not know where the file is."""
    (tmp_path / "key").write_text("s3cret")
    (tmp_path / "key").chmod(0o600)
    access = "  access: {key: '${file:key}', certificate: ca.pem}\n"
    with shop(tmp_path):
        source: object = load(write_settings(tmp_path, WHOLE.replace("log:", f"{access}log:"))).source
        assert secret(source.access.key) == "s3cret"  # type: ignore[attr-defined]  # the plug-in's own setting
        assert source.access.certificate == tmp_path / "ca.pem"  # type: ignore[attr-defined]  # the same


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ("sever: one", "server: one", "cdcflow.yaml:3:3: unknown setting source.sever; did you mean source.server?"),
        ("tables: items", "server: one", "cdcflow.yaml:3:3: source.tables must be a list"),
        ("access: {kee: x}", "server: one", "3:12: unknown setting source.access.kee; did you mean source.access.key?"),
        ("access: {key: x}", "server: one", "cdcflow.yaml:3:12: source.access.key must be a reference"),
        ("slot: s", "server: one", "source.slot; known here: kind, tables, heartbeat, backfill, server, access. It is"),
        ("heartbeat: 1x", "server: one", "cdcflow.yaml:3:3: source.heartbeat must be a number with a unit"),
        ("shup", "shop", "cdcflow.yaml:2:3: source.kind must be 'postgres', 'mysql', 'mariadb' or 'shop'"),
        ("shup", "shop", "did you mean shop? Another kind needs its package here: pip install PACKAGE"),
    ],
)  # fmt: skip
def test_mistake_in_a_plug_in_s_settings_has_its_line_and_the_nearest_name(
    tmp_path: Path, wrong: str, right: str, expected: str
) -> None:
    """As in the settings of cdcflow's own sources."""
    with shop(tmp_path):
        assert expected in complaint(tmp_path, WHOLE.replace(right, wrong, 1))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import nothing_of_this_name", "cannot be imported: cdcflow-shop (cdcflow_shop:plugin) raised ModuleNotFound"),
        ("raise SystemExit(3)", "raised SystemExit: 3; install another version of it (pip install --upgrade cdcflow-s"),
        ("plugin = 5", "is of a plug-in that is not one: cdcflow_shop:plugin of cdcflow-shop is not a cdcflow.ports.S"),
        (SHOP.replace("ports=1", "ports=2"), "for version 2 of cdcflow.ports (cdcflow-shop), and this cdcflow has ver"),
        (SHOP.replace("ports=1", "ports=2"), "sion 1: run pip install --upgrade cdcflow"),
        (SHOP.replace("ports=1", "ports=0"), "sion 1: run pip install --upgrade cdcflow-shop"),
        (SHOP.replace("=ShopSettings", "=Path"), "whose settings are not a cdcflow.ports.SourceSettings (cdcflow-sho"),
    ],
)  # fmt: skip
def test_plug_in_that_cannot_be_used_is_named_with_what_helps(tmp_path: Path, code: str, expected: str) -> None:
    """And pipelines of other kinds do not notice it."""
    with shop(tmp_path, code):
        found = complaint(tmp_path, WHOLE)
        assert found.startswith("cdcflow.yaml:2:3: source.kind is of a plug-in ")
        assert expected in found
        assert load(write_settings(tmp_path, POSTGRES)).source.kind == "postgres"


def test_kind_that_two_packages_declare_is_refused_and_names_both(tmp_path: Path) -> None:
    """Which of them is used would depend on the order of the path. Other kinds of both can be used."""
    other = install(tmp_path / "others", "another-shop", {"shop": "another_shop:plugin", "mall": "another_shop:plugin"})
    (other / "another_shop.py").write_text(SHOP)
    with shop(tmp_path), on_path(other):
        found = complaint(tmp_path, WHOLE)
        assert "source.kind is declared by another-shop and cdcflow-shop: uninstall one of them" in found
        assert load(write_settings(tmp_path, WHOLE.replace("kind: shop", "kind: mall"))).source.kind == "mall"


def test_package_that_is_on_the_path_twice_is_one_package(tmp_path: Path) -> None:
    """A checkout that is also installed."""
    again = install(tmp_path / "again", "cdcflow-shop", {"shop": "cdcflow_shop:plugin"})
    with shop(tmp_path), on_path(again):
        assert load(write_settings(tmp_path, WHOLE)).source.kind == "shop"


def test_kind_of_cdcflow_cannot_be_taken_by_a_plug_in(tmp_path: Path) -> None:
    """An installed package must not read the pipelines of PostgreSQL."""
    with shop(tmp_path, kinds={"postgres": "cdcflow_shop:plugin"}):
        assert type(load(write_settings(tmp_path, POSTGRES)).source).__module__ == "cdcflow.config.sources"


def test_plug_in_is_imported_only_for_its_kind(tmp_path: Path) -> None:
    """What is not used cannot break, slow down or change other pipelines."""
    with shop(tmp_path, kinds={"shop": "cdcflow_shop:plugin", "mall": "cdcflow_shop:mall"}):
        load(write_settings(tmp_path, POSTGRES))
        complaint(tmp_path, POSTGRES.replace("postgres,", "postgers,"))
        assert "cdcflow_shop" not in sys.modules
        load(write_settings(tmp_path, WHOLE))
        assert "cdcflow_shop" in sys.modules


def test_what_a_plug_in_cannot_do_is_named(tmp_path: Path) -> None:
    """`verify` without a comparison, and executors: the command names the capability that the kind lacks."""
    with shop(tmp_path):
        config: Config = load(write_settings(tmp_path, WHOLE))
        with pytest.raises(ConfigurationError, match="kind shop is not read by executors") as caught:
            wiring.readers(config, "local[1]").__enter__()
        assert caught.value.remedy == "run the same command without --on"
        publish = "publish: {kafka: {brokers: 'k:9092', topic_prefix: shop}}\n"
        with pytest.raises(ConfigurationError, match="kind shop has no connector of Debezium"):
            wiring.publisher(load(write_settings(tmp_path, WHOLE + publish)))
        write_settings(tmp_path, WHOLE)
        source = wiring.open_source(config)
        wiring.open_log(config, source.identity()).close()
        found = CliRunner().invoke(app, ["verify", "-c", str(tmp_path / "cdcflow.yaml")])
        assert "a source of kind shop cannot be compared with its log and tables" in " ".join(found.output.split())
        assert "source-lacks" in found.output


def test_targets_are_plug_ins_with_their_own_settings(tmp_path: Path) -> None:
    """With line and nearest name, paths below the settings file, and the name of a kind that is not installed."""
    head = f"{POSTGRES}targets:\n  copy:\n    kind: mydb\n"
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        target: object = load(write_settings(tmp_path, f"{head}    file: x.sqlite\n")).targets["copy"]
        assert target.file == tmp_path / "x.sqlite"  # type: ignore[attr-defined]  # the plug-in's own setting
        expected = "cdcflow.yaml:6:5: unknown setting targets.copy.fiel; did you mean targets.copy.file?"
        assert expected in complaint(tmp_path, f"{head}    fiel: x\n")
        assert "targets.copy.tables" in complaint(tmp_path, f"{head}    file: x\n    tables: ['!public.a']\n")
        assert [f.text for f in wiring.doctor(load(write_settings(tmp_path, f"{head}    file: x\n")))][-1].startswith(
            f"file {tmp_path / 'x'}: "
        )
    assert "cdcflow.yaml:5:5: targets.copy.kind is not installed" in complaint(tmp_path, head)
