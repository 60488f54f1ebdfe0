"""A fleet of simulated members: reports as daemons publish them, of pipelines in every state."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cdcflow.config import Fleet
from cdcflow.daemon.fleet_process import fleet_watch
from cdcflow.daemon.interfaces.fleet_web import FleetInterfaces, application
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.fleet.registers import ReportFolder, object_name
from cdcflow.fleet.report import MemberFinding, MemberReport
from cdcflow.fleet.watch import FleetWatch
from cdcflow.http.access import Access

GB = 1_000_000_000
_SUBJECTS = ("orders", "billing", "stock", "users", "search", "events", "payments", "returns", "prices", "audit")
_REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south")
LONG = "SELECT is not granted on " + ", ".join(f"public.table_{n}" for n in range(40))


def report(name: str = "shop", **fields: object) -> MemberReport:
    """The report of a daemon that captures, with some fields changed."""
    now = time.time()
    numbers = {
        "lag_bytes": 18_400,
        "lag_seconds": 0.8,
        "rows_per_second": 4_831.0,
        "durable_offset": 31_337_042,
        "kept_bytes": 1.2 * GB,
        "kept_bytes_max": 8 * GB,
        "budget_used": 0.15,
        "tables": 24,
        "tables_reading": 0,
        "tables_failed": 0,
        "tables_not_fresh": 0,
        "fresh_as_of": now - 4,
        "tables_verified": 24,
        "verified_at": now - 40_000,
        "rows_different": 0,
        "merge_cut": 812,
        "merge_offset": 31_336_000,
        "merge_ended_at": now - 21,
        "merge_seconds": 4.1,
        "merge_left_out": 0,
        "merge_every_s": 60,
    }
    made = MemberReport(
        name=name,
        kind="capture",
        place=f"cdc-{name}",
        at=round(now, 3),
        every_s=15.0,
        state="capturing",
        version="0.1.0",
        page=f"https://{name}.cdc.example.com/",
        numbers=numbers,
        texts={"source": "postgres", "merge_state": "idle"},
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # what a test gives


def with_numbers(given: MemberReport, **numbers: float) -> MemberReport:
    return replace(given, numbers={**given.numbers, **numbers})


def finding(level: str, text: str, remedy: str | None = None) -> MemberFinding:
    return MemberFinding(level, text, remedy)


def fleet(size: int, seed: int = 1) -> Iterator[MemberReport]:
    """The reports of a fleet of this size, some of which need an operator. The same seed gives the same ones."""
    dice = random.Random(seed)
    for number in range(size):
        name = f"{_SUBJECTS[number % 10]}-{_REGIONS[number // 10 % 5]}-{number // 50 + 1}"
        yield _vary(report(name), number, dice)


def _vary(one: MemberReport, number: int, dice: random.Random) -> MemberReport:
    kinds = ("postgres", "mysql", "mariadb")
    one = replace(one, texts={**one.texts, "source": kinds[number % 3]})
    one = with_numbers(
        one,
        lag_seconds=round(dice.expovariate(1), 1),
        lag_bytes=dice.randrange(0, 4_000_000),
        kept_bytes=dice.randrange(GB // 10, 3 * GB),
        budget_used=round(dice.uniform(0.01, 0.4), 4),
        tables=dice.randrange(3, 180),
    )
    one = with_numbers(one, tables_verified=one.numbers["tables"] - number % 3)
    match number:
        case 17:
            return _earlier(one, 5_400)
        case 31:
            lost = finding(
                "error",
                "The capture has ended and will not try again: the slot cdcflow_shop is lost.",
                "Run `cdcflow run --accept-history-loss` once.",
            )
            return replace(_earlier(one, 9_100), state="halted", ended=True, findings=[lost], errors=1)
        case 44:
            refused = finding("error", "The capture is waiting: connection refused by db-44:5432.", "Start the server.")
            made = replace(one, state="waiting", findings=[refused], errors=1)
            return with_numbers(made, lag_seconds=1_260, fresh_as_of=one.at - 1_260, tables_not_fresh=162)
        case 58:
            used = finding(
                "error", "96 % of the budget for the source's log is used.", "Find out why the capture lags."
            )
            more = finding("warning", "The log lags the source by 41 minutes.", "If it is catching up, wait.")
            made = replace(one, findings=[used, more], errors=1, warnings=1)
            return with_numbers(made, budget_used=0.96, kept_bytes=7.7 * GB, lag_seconds=2_460, lag_bytes=6 * GB)
        case 73:
            failed = finding(
                "error", f"Reading public.weather failed: {LONG[:200]}.", "Fix the cause, then read it again."
            )
            return with_numbers(replace(one, findings=[failed], errors=1), tables_failed=1)
        case 90 | 120:
            slow = finding("warning", "Merges have failed since 2026-11-30 02:10:44Z: the catalog did not answer.")
            return replace(one, findings=[slow], warnings=1, texts={**one.texts, "merge_state": "failing"})
        case 101:
            return replace(one, state="paused", findings=[finding("note", "The capture is paused.", "Resume it.")])
        case 140:
            return replace(_earlier(one, 30_000), ended=True, state="stopped")
        case n if n % 25 == 6:
            return replace(
                one, findings=[finding("note", "Reading public.flights is paused; its changes are captured.")]
            )
    return one


def _earlier(one: MemberReport, seconds: float) -> MemberReport:
    """The report that it would have published then."""
    times = {name: one.numbers[name] - seconds for name in ("fresh_as_of", "merge_ended_at", "verified_at")}
    return with_numbers(replace(one, at=one.at - seconds), **times)


def publish(folder: Path, *reports: MemberReport) -> None:
    """Write reports into a register, as their members do."""
    register = ReportFolder(folder)
    for one in reports:
        register.publish(object_name(one.name, one.kind, one.place), one.to_bytes())


class FleetServer:
    """The server of `cdcflow fleet`, in this process. `watch.refresh` reads its register."""

    def __init__(self, folder: Path, access: Access | None = None, **settings: object) -> None:
        folder.mkdir(exist_ok=True)
        self.settings = Fleet.model_validate({"registers": [{"at": str(folder)}], **settings})
        self.watch: FleetWatch = fleet_watch(self.settings)
        doors = FleetInterfaces(self.watch, access or Access())
        self._server = HttpServer(
            "127.0.0.1:0", dict, access=doors.access, application=lambda names: application(doors, names)
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def start(self) -> None:
        self.watch.refresh()
        self._server.start()

    def close(self) -> None:
        self.watch.close()
        self._server.close()
