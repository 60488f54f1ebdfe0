"""A fleet of real daemons and merges: what their page shows when one is halted, one is killed, and one is well."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, said
from tests.support.fleet.simulated import FleetServer
from tests.support.polling import PATIENCE_S, wait_for, wait_until

from cdcflow.fleet.members import Members

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Member(Shop):
    """A pipeline in a folder, which publishes into a register next to it."""

    def __init__(self, postgres: PostgresServer, folder: Path, name: str) -> None:
        folder.mkdir()
        self.name = name
        database = postgres.create_database(name)
        database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
        super().__init__(folder, database)
        self.rest["log"]["seal"] = {"age_max": "200ms"}
        self.rest["merge"] = {"engine": "local", "warehouse": "lake"}
        self.join()

    def join(self) -> None:
        fleet = {"at": "../register", "name": self.name, "every": "1s"}
        self.rest["service"] = {"fleet": fleet, "freshness_every": "1s"}
        self.write()

    def close(self) -> None:
        self.kill()
        self.database.drop()


class Clock:
    """This machine's clock, which a test moves forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[FleetServer, Clock]]:
    made, clock = FleetServer(tmp_path / "register"), Clock()
    made.watch.members = Members(monotonic=clock.now)
    made.start()
    yield made, clock
    made.close()


def answer(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def rows(server: FleetServer) -> dict[str, dict[str, Any]]:
    server.watch.refresh()
    return {one["name"]: one for one in answer(server.port, "/api/v1/fleet")["pipelines"]}


def test_halted_killed_and_well_daemons(
    postgres: PostgresServer, fleet: tuple[FleetServer, Clock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is shown as what it is; the killed one, which could not say anything, as silent."""
    server, clock = fleet
    with ExitStack() as around:
        members = {name: Member(postgres, tmp_path / name, name) for name in ("well", "halted", "killed")}
        for member in members.values():
            around.callback(member.close)
        well, halted, killed = members.values()
        well.rest.pop("service")
        well.write()
        for member in members.values():
            member.start()
        well.join()  # while it runs
        well.hang_up()
        found = wait_for(
            lambda: rows(server), lambda r: len(r) == 3 and all(o["state"] == "capturing" for o in r.values()), "three"
        )
        assert {(one["level"], one["tables"], one["source"]) for one in found.values()} == {("good", 1, "postgres")}
        assert all(one["kept_bytes"] >= 0 and one["lag_seconds"] >= 0 for one in found.values())
        wait_until(lambda: rows(server)["well"].get("fresh_as_of"), "a proof that it is fresh")

        assert killed.daemon is not None
        killed.daemon.kill()
        killed.daemon.wait()
        slot = halted.ask("status")["source"]["slot"]
        halted.database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        )
        drop = f"SELECT pg_drop_replication_slot('{slot}')"
        wait_until(lambda: drop_slot(halted, drop), "the slot to be dropped")
        assert halted.daemon is not None
        halted.daemon.wait(PATIENCE_S)
        found = wait_for(lambda: rows(server), lambda r: r["halted"]["state"] == "halted", "the end of one")
        assert found["halted"]["level"] == "error"
        assert "slot" in found["halted"]["text"]

        clock.ahead_s = 40.0  # the killed one has published nothing for this long
        found = wait_for(lambda: rows(server), lambda r: r["well"]["state"] == "capturing", "the other to report")
        assert [one["state"] for one in found.values()] == ["silent", "halted", "capturing"]
        assert "has been silent since" in found["killed"]["text"]
        assert found["killed"]["lag_seconds"] >= 0  # its last numbers stay

        (tmp_path / "fleet.yaml").write_text("registers: [{at: register}]\nlisten: 127.0.0.1:0\n")
        monkeypatch.chdir(tmp_path)
        text = said("fleet", "--once", code=1)
        assert "3 pipelines" in text
        assert "halted" in text
        assert [
            one["name"] for one in json.loads(said("fleet", "--once", "--json", "--name", "well", code=1))["pipelines"]
        ]
        well.end()
        assert wait_for(lambda: rows(server), lambda r: r["well"]["state"] == "stopped", "its end")["well"][
            "level"
        ] == ("warning")


def drop_slot(shop: Shop, statement: str) -> bool:
    """Whether the slot is dropped; its walsender may have been started again."""
    try:
        shop.database.execute(statement)
    except Exception as error:  # noqa: BLE001  the driver's error for a slot in use
        if "is active" in str(error):
            shop.database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            return False
        return "does not exist" in str(error)
    return True


@pytest.mark.long
def test_merges_of_another_process_are_part_of_the_row(
    postgres: PostgresServer, fleet: tuple[FleetServer, Clock], tmp_path: Path
) -> None:
    """They may be on another machine, where no daemon knows of them."""
    server, _ = fleet
    member = Member(postgres, tmp_path / "merged", "merged")
    merging: subprocess.Popen[bytes] | None = None
    try:
        member.start("--no-merge")
        with (tmp_path / "merge.log").open("wb") as output:
            merging = subprocess.Popen(
                [sys.executable, "-m", "cdcflow.cli", "merge", "--every", "1s"],
                cwd=member.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        found = wait_for(
            lambda: rows(server),
            lambda r: "merge_place" in r.get("merged", {}) and "merge_cut" in r["merged"],
            "the merge",
            more=(tmp_path / "merge.log").read_text,
        )
        assert found["merged"]["level"] == "good"
        members = answer(server.port, "/api/v1/fleet/merged")["members"]
        assert sorted(one["kind"] for one in members) == ["capture", "merge"]
        merging.send_signal(signal.SIGTERM)
        assert merging.wait(PATIENCE_S) == 0
        after = rows(server)["merged"]
        assert (after["state"], after["level"]) == ("capturing", "warning")
        assert "Merges on " in after["text"]
        member.database.execute("INSERT INTO orders VALUES (2)")
        by_cron = [sys.executable, "-m", "cdcflow.cli", "merge", "--once"]
        merged = subprocess.run(by_cron, cwd=member.folder, capture_output=True, text=True, check=False)
        assert merged.returncode == 0, merged.stderr
        assert rows(server)["merged"]["level"] == "good"
    finally:
        if merging is not None:
            merging.kill()
            merging.wait()
        member.close()


def test_process_of_the_page_serves_and_ends(tmp_path: Path) -> None:
    """As a service: SIGTERM ends it with 0; a register that is missing is shown, not fatal."""
    (tmp_path / "fleet.yaml").write_text("registers: [{at: register}]\nlisten: 127.0.0.1:0\n")
    command = [sys.executable, "-m", "cdcflow.cli", "fleet", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
        found = wait_for(lambda: answer(event["port"], "/api/v1/fleet"), lambda f: f["read"], "the first look")
        assert found["pipelines"] == []
        assert "No such file or directory" in found["outages"][0]["reason"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
