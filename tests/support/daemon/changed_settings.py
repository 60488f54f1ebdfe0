"""Scenarios of settings that change, for a bank on any database: the captured data is right whenever that happens."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import structlog
from tests.support.daemon.bank import Branch
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.model.table import TableId


@dataclass
class Changing:
    """A bank whose settings change. `configure` is the bank's own."""

    bank: Branch
    configure: Callable[..., Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def use(self, *tables: str, **source: Any) -> None:
        """Write the settings file: these tables, and further settings."""
        self.configure(tables=[f"{self.bank.schema}.{table}" for table in tables], **source)

    def reload(self, capture: Capture) -> None:
        """Have a capture in this process take the file up, and wait until it does."""
        settings = wiring.capture_settings(load(self.bank.config_path), reopened=True)
        number = capture.reload(settings, in_place=False)
        self.bank.wait_until(lambda: capture.settings_number == number, "the settings to be applied")

    def refusal(self, capture: Capture) -> str:
        """Have a capture apply a file with which it cannot continue, and wait for its reason."""
        settings = wiring.capture_settings(load(self.bank.config_path), reopened=True)
        number = capture.reload(settings, in_place=False)

        def refused() -> dict[str, Any]:
            state: Any = capture.status()["settings"]
            return dict(state.get("refused") or {})

        self.bank.wait_until(lambda: refused().get("number") == number, "the settings to be abandoned")
        return str(refused()["reason"])

    def table(self, name: str) -> TableProgress:
        progress = Progress.from_json(self.bank.reader.newest_checkpoint().progress)
        return progress.tables[TableId(self.bank.schema, name)]

    def catch_up(self) -> None:
        fence = self.bank.fence()
        self.bank.wait_until(lambda: self.bank.has_reached(fence), "the log to pass the fence")

    def on_event(self, event: str, fields: Any) -> None:
        self.events.append((event, dict(fields)))

    def reread(self) -> list[str]:
        return [str(fields["table"]) for event, fields in self.events if event == "table to be read again"]

    @contextlib.contextmanager
    def capturing(self) -> Iterator[Capture]:
        with self.bank.capturing(on_event=self.on_event) as capture:
            yield capture


def left_out_and_taken_in_again(changing: Changing, out: str) -> None:
    """During a workload one table is removed and captured again; the others lose and double nothing."""
    bank = changing.bank
    others = [table for table in bank.tables if table != out]
    changing.use(*bank.tables)
    with changing.capturing() as capture:
        changing.catch_up()
        bank.start_writing(seed=11)
        changing.use(*others)
        changing.reload(capture)
        bank.wait_until(lambda: changing.table(out).state == "forgotten", "the table to be excluded")
        status: Any = capture.status()
        assert status["tables"][f"{bank.schema}.{out}"]["state"] == "forgotten"
        assert status["settings"] == {"number": 2, "given": 2}
        before = bank.transactions
        bank.wait_until(lambda: bank.transactions > before + 20, "changes that the log is not to have")
        changing.use(*bank.tables)
        changing.reload(capture)
        bank.wait_until(lambda: changing.table(out).state == "done", "the table to be read again")
        bank.stop_writing()
        changing.catch_up()
    assert changing.table(out).generation == 2
    assert [changing.table(table).generation for table in others] == [1] * len(others), "the others are not read again"
    bank.assert_log_equals_source()


def killed_while_a_table_is_taken_in(changing: Changing, taken: str, *point: str) -> None:
    """SIGHUP adds a table, and SIGKILL hits before that is done: the next start continues with it."""
    bank = changing.bank
    changing.use(*(table for table in bank.tables if table != taken))
    bank.catch_up_and_stop(bank.daemon())
    bank.start_writing(seed=12)
    killed = bank.daemon(*point)
    bank.wait_until(lambda: bank.transactions > 10, "the writer to begin", killed)
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the capture to be live", killed)
    changing.use(*bank.tables)
    killed.send_signal(signal.SIGHUP)
    bank.assert_killed(killed, live=True)
    again = bank.daemon()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 10, "the writer to continue", again)
    bank.stop_writing()
    bank.catch_up_and_stop(again)
    assert changing.table(taken).state == "done"
    bank.assert_log_equals_source()


@dataclass(frozen=True)
class Odd:
    """A table `odd (id, due)` with a value that its type cannot hold under id 1, and how settings keep it.

    `null`, `other`, `text`: settings under which that value becomes NULL, something else of the same type (`None` if no
    such setting exists), and text.
    """

    null: dict[str, Any]
    other: dict[str, Any] | None
    text: dict[str, Any]


def newest(bank: Branch, table: str, key: int, column: str) -> pa.Scalar:
    """A column's latest value in the log, unconverted: Python has no date for the end of Arrow's type."""
    found = None
    for _, _, rows in bank.reader.read_rows(tables=[TableId(bank.schema, table)]):
        for number, there in enumerate(rows.column("id").to_pylist()):
            found = rows.column(column)[number] if there == key else found
    assert found is not None, f"{table} has no row {key}"
    return found


def policy_changed(changing: Changing, odd: Odd) -> None:
    """Running and stopped: rows that a changed setting converts differently are read again; after a stop nothing is."""
    bank = changing.bank

    def due() -> pa.Scalar:
        return newest(bank, "odd", 1, "due")

    def is_at(generation: int) -> Callable[[], bool]:
        def is_there() -> bool:
            found = changing.table("odd")  # once: between two polls it may begin to be read again
            return (found.state, found.generation) == ("done", generation)

        return is_there

    generation = 1
    changing.use("odd", **odd.null)
    with changing.capturing() as capture:
        bank.wait_until(lambda: bank.reader.exists() and bool(bank.reader.newest_checkpoint().progress), "a log")
        bank.wait_until(is_at(generation), "the table to be read")
        assert not due().is_valid
        for settings in (odd.other, odd.text):
            if settings is not None:
                generation += 1
                changing.use("odd", **settings)
                changing.reload(capture)
                bank.wait_until(is_at(generation), "the table to be read again")
                assert due().is_valid
        assert due().type == pa.string()
    changing.use("odd", **odd.null)
    with changing.capturing():
        bank.wait_until(is_at(generation + 1), "the table to be read again after a restart")
        assert not due().is_valid
    before = changing.reread()
    assert before == [f"{bank.schema}.odd"] * generation
    with changing.capturing():
        changing.catch_up()
    assert changing.table("odd").generation == generation + 1, "the same settings read nothing"
    assert changing.reread() == before
    assert bank.reader.check(deep=True).is_whole


def failed_reading_is_tried_again(changing: Changing, mended: dict[str, Any], *, running: bool) -> None:
    """A table `odd` with a value that its type cannot hold fails; with the setting that the error names it is read, as
    `cdcflow plan` says before, when the daemon takes the file up or is started again."""
    bank = changing.bank

    def is_in(state: str) -> Callable[[], bool]:
        def is_there() -> bool:
            with contextlib.suppress(KeyError):  # no cut has it yet
                return changing.table("odd").state == state
            return False

        return is_there

    changing.use("odd")
    with changing.capturing() as capture:
        bank.wait_until(lambda: any(event == "table failed" for event, _ in changing.events), "a table to fail")
        bank.wait_until(is_in("failed"), "the reading to fail")
        assert "source.columns" in str(changing.table("odd").reason)
        changing.use("odd", **mended)
        assert planned(bank) == {"odd": "read again"}
        if running:
            changing.reload(capture)
            bank.wait_until(is_in("done"), "the table to be read")
    with changing.capturing():
        bank.wait_until(is_in("done"), "the table to be read")
        changing.catch_up()
    assert changing.table("odd").generation == 2
    assert planned(bank) == {"odd": "unchanged"}


def planned(bank: Branch) -> dict[str, str]:
    """What `cdcflow plan` reports for each table."""
    result = CliRunner().invoke(app, ["plan", "--json", "--config", str(bank.config_path)])
    structlog.reset_defaults()
    found = json.loads(result.stdout)
    return {table["name"].rpartition(".")[2]: table["action"] for table in found["tables"]}
