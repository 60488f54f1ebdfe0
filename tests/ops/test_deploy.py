"""docs/deploy.md from a laptop to a server and into a container: its blocks are run, in order and word by word.

Replaced are the database's address, the port, the folders that only root may write, and the account of the service.
What needs systemd, Docker or a cluster is not run here: tests/chart renders and runs the pods of the same page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from tests.servers.postgres import Database, PostgresServer
from tests.support.docs.pages import DOCS, ROOT, Block, blocks
from tests.support.polling import wait_until

from cdcflow import local

pytestmark = [pytest.mark.postgres, pytest.mark.long]
WAIT_S = 300.0
PASSWORD = "choose-one"  # noqa: S105  the page's, of a database that these tests make
PAGE: list[Block] = blocks(DOCS / "deploy.md")
NOT_HERE = ("useradd", "systemctl", "docker", "sudo")
"""Commands that would change this machine, or need what it does not have."""


def block(language: str, text: str) -> str:
    """The one block of the page that has this text."""
    (found,) = [one.text for one in PAGE if one.language == language and text in one.text]
    return found


class Machine:
    """A laptop and a server in one folder, with a database that requires a password."""

    def __init__(self, room: Path, database: Database) -> None:
        self.room, self.database = room, database
        self.laptop = room / "laptop"
        self.laptop.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        for name in ("opt", "etc/systemd/system", "var/lib"):
            (room / name).mkdir(parents=True)
        account, group = os.getuid(), os.getgid()
        self._replaced = {
            "/opt/cdcflow": f"{room}/opt/cdcflow",
            "/etc/": f"{room}/etc/",
            "/var/lib/": f"{room}/var/lib/",
            "cdcflow:cdcflow": f"{account}:{group}",
            "-o cdcflow -g cdcflow": "",
            "-g cdcflow": "",
            "127.0.0.1:8079": f"127.0.0.1:{self.port}",
            "db.example.com:5432": "{0.hostname}:{0.port}".format(urlsplit(database.url)),
        }
        self.programs = Path(sys.executable).parent
        self.daemon: subprocess.Popen[bytes] | None = None

    def here(self, text: str) -> str:
        """A text of the page with the folders, the account and the address of this machine."""
        for name, other in self._replaced.items():
            text = text.replace(name, other)
        return text

    def environment(self, **variables: str) -> dict[str, str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        pip = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "CDCFLOW_PLAIN": "1"}
        return {**os.environ, **pip, "PATH": path, **variables}

    def run(self, script: str, folder: Path, **variables: str) -> str:
        """Run the lines of a block, except those that are not for this machine. Returns what they print."""
        lines = [line for line in self.here(script).splitlines() if not line.startswith(NOT_HERE)]
        done = subprocess.run(
            ["bash", "-euc", "\n".join(lines)],
            cwd=folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def start(self, words: list[str], folder: Path, **variables: str) -> None:
        with (self.room / "daemon.log").open("ab") as output:
            self.daemon = subprocess.Popen(
                words, cwd=folder, env=self.environment(**variables), stdout=output, stderr=output
            )

    def stop(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGINT)
        self.daemon.wait(WAIT_S)

    def wait_for_rows(self, warehouse: Path, count: int) -> None:
        """Wait until the latest cut of a warehouse has this many orders."""

        def rows() -> int:
            assert self.daemon is not None
            assert self.daemon.poll() is None, self.log()
            with suppress(Exception):
                return int(local.read_cut(warehouse)["public.orders"].num_rows)
            return 0

        wait_until(lambda: rows() == count, f"{count} orders in {warehouse}", patience_s=WAIT_S, more=self.log)

    def log(self) -> str:
        return (self.room / "daemon.log").read_text()[-3000:]

    def slots(self) -> list[str]:
        return self.database.server.psql("SELECT slot_name FROM pg_replication_slots", "shop").split()


@pytest.fixture
def machine(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Machine]:
    """The quickstart's role, and its table, exist."""
    database = own_postgres.create_database("shop")
    own_postgres.write_hba(
        "local all postgres trust", "host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"
    )
    database.execute(f"CREATE ROLE cdcflow LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    database.execute("GRANT CREATE ON DATABASE shop TO cdcflow")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, status text); ALTER TABLE orders OWNER TO cdcflow")
    database.execute("INSERT INTO orders VALUES (1, 'new'), (2, 'new')")
    made = Machine(tmp_path, database)
    yield made
    if made.daemon is not None:
        made.daemon.kill()
        made.daemon.wait()


def follow_laptop(machine: Machine) -> None:
    """The first section: settings, doctor, and a daemon that merges."""
    (machine.laptop / "shop.yaml").write_text(machine.here(block("yaml", "path: ./shop-log")))
    lines = block("bash", "export SHOP_PASSWORD").splitlines()
    assert (lines[0], lines[-1]) == ("pip install '.[local,service]'", "cdcflow run -c shop.yaml")
    machine.run("\n".join(lines[1:-1]), machine.laptop)
    machine.start(lines[-1].split(), machine.laptop, SHOP_PASSWORD=PASSWORD)
    machine.wait_for_rows(machine.laptop / "warehouse", 2)


def follow_server(machine: Machine) -> None:
    """The second section up to the settings."""
    script = block("bash", "useradd")
    assert script.count("shop.yaml") == 2
    machine.run(script.replace(" shop.yaml ", f" {machine.laptop}/shop.yaml "), ROOT)
    etc = machine.room / "etc" / "cdcflow"
    assert (etc / "shop.env").stat().st_mode & 0o777 == 0o600
    (etc / "shop.env").write_text(f"SHOP_PASSWORD={PASSWORD}\n")
    settings = yaml.safe_load((etc / "shop.yaml").read_text())
    changed = yaml.safe_load(machine.here(block("yaml", "path: /var/lib/cdcflow/shop/log")))
    assert settings["merge"].keys() == changed["merge"].keys()
    (etc / "shop.yaml").write_text(yaml.safe_dump({**settings, **changed}))


def start_unit(machine: Machine) -> None:
    """What systemd would start for cdcflow@shop."""
    unit = (machine.room / "etc" / "systemd" / "system" / "cdcflow@.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    (file,) = re.findall(r"^EnvironmentFile=-(.+)$", unit, re.MULTILINE)
    assert command.split()[0] == f"{machine.room}/opt/cdcflow/bin/cdcflow"
    variables = dict(
        line.split("=", 1) for line in Path(machine.here(file.replace("%i", "shop"))).read_text().splitlines()
    )
    words = machine.here(command.split()[0].replace(str(machine.room), "") + command[len(command.split()[0]) :])
    machine.start(words.replace("%i", "shop").split(), machine.room / "var/lib/cdcflow/shop", **variables)


def test_pipeline_is_moved_from_the_laptop_to_the_server(machine: Machine) -> None:
    """It continues at the next change: no row is read again, and the source has one slot."""
    follow_laptop(machine)
    slots = machine.slots()
    machine.stop()
    machine.database.execute("INSERT INTO orders VALUES (3, 'while no daemon runs')")
    follow_server(machine)
    machine.run(block("bash", "cp -r shop-log"), machine.laptop)
    start_unit(machine)
    state = machine.room / "var" / "lib" / "cdcflow" / "shop"
    machine.wait_for_rows(state / "warehouse", 3)
    assert machine.slots() == slots
    machine.stop()
    log = machine.log()
    assert "chunk read" not in log.rpartition("capture started")[2]
    status = json.loads(machine.run("cdcflow status --json -c /etc/cdcflow/shop.yaml", state, SHOP_PASSWORD=PASSWORD))
    assert status["tables"]["public.orders"]["rows"] == 2, "those of the laptop"


def test_pipeline_begins_again_on_the_server(machine: Machine) -> None:
    """The laptop's slot is gone, so the source keeps no log for it."""
    follow_laptop(machine)
    slots = machine.slots()
    machine.stop()
    follow_server(machine)
    machine.run(block("bash", "cdcflow drop"), machine.laptop, SHOP_PASSWORD=PASSWORD)
    assert machine.slots() == []
    start_unit(machine)
    machine.wait_for_rows(machine.room / "var" / "lib" / "cdcflow" / "shop" / "warehouse", 2)
    assert machine.slots() not in ([], slots)


def test_secrets_of_the_container_are_those_of_its_settings(machine: Machine) -> None:
    """A missing file ends the container, and a token that is too short, too."""
    machine.run(block("bash", "docker build"), machine.laptop, SHOP_PASSWORD=PASSWORD)
    made = {path.name: path.read_text() for path in (machine.laptop / "secrets").iterdir()}
    settings = block("yaml", "path: /log/cdcflow")
    assert set(made) == set(re.findall(r"\$\{file:/secrets/shop/([\w-]+)\}", settings))
    text = settings.replace("/secrets/shop", str(machine.laptop / "secrets")).replace("/log/", f"{machine.room}/log/")
    (machine.room / "log").mkdir()
    text = machine.here(text).replace("0.0.0.0:8079", f"0.0.0.0:{machine.port}")
    (machine.laptop / "container.yaml").write_text(text)
    machine.start(["cdcflow", "run", "-c", "container.yaml"], machine.laptop)
    machine.wait_for_rows(machine.room / "log" / "warehouse", 2)
