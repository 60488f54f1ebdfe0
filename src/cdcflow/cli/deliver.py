"""`cdcflow deliver`: the tables of the log in the targets that packages bring. `cdcflow run` does it, too."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.reports import readable

if TYPE_CHECKING:
    from cdcflow.targets.delivery import TableDelivery


def deliver(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="Targets of the settings. Default: all.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Up to the end that the log has now, then end.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Bring the tables of targets to the end of the log, each change exactly once, until SIGTERM or Ctrl-C.

    It waits while another process, such as `cdcflow run`, delivers to a target. With --once it exits with 1 if a table
    could not be delivered.
    """
    from cdcflow.daemon import signals
    from cdcflow.daemon.delivery_process import DELIVER_EVERY_S
    from cdcflow.daemon.events import send_structlog_to

    settings = load(config)
    send_structlog_to(sys.stderr)  # stdout is for the report
    names = targets or list(settings.targets)
    if not names:
        raise ConfigurationError("the settings have no targets", remedy="set targets (docs/own-target.md)")
    with ExitStack() as held:
        deliveries = [_Delivery(settings, name, held, json) for name in names]
        if once:
            done = [one.deliver_once() for one in deliveries]
            if not all(done):
                raise typer.Exit(failure.FINDINGS)
            return

        def again() -> None:
            for one in deliveries:
                one.deliver_or_wait(is_alone=len(deliveries) == 1)

        every = [settings.targets[name].every for name in names if name in settings.targets]
        signals.again_and_again(again, min((one or DELIVER_EVERY_S for one in every), default=DELIVER_EVERY_S))


class _Delivery:
    """Deliveries to one target. The first delivery takes the target's lock, which this process then keeps."""

    def __init__(self, settings: Config, name: str, held: ExitStack, json: bool) -> None:
        self._settings = settings
        self._name = name
        self._held = held
        self._is_held = False
        self._waits = ""
        self._json = json

    def deliver(self) -> bool:
        """Deliver, and print what was done; return whether every table was delivered."""
        from cdcflow import wiring
        from cdcflow.daemon.delivery_process import deliver_to

        if not self._is_held and self._name in self._settings.targets:
            self._held.enter_context(wiring.hold_target(self._settings, self._name))
            self._is_held = True
        report = deliver_to(self._settings, self._name)
        for one in report.tables:
            if self._json:
                output.print_json({"target": self._name, **one.to_json()})
            else:
                typer.echo(readable.plain(f"{self._name}: {one.table}: {_in_words(one)}"))
        return not any(one.problem for one in report.tables)

    def deliver_once(self) -> bool:
        """Deliver like `deliver`; if another process holds the target, wait until it has delivered what the log has
        now."""
        from cdcflow.daemon.delivery_process import wait_for_holder
        from cdcflow.wiring.targets import TargetHeld

        try:
            return self.deliver()
        except TargetHeld as error:
            done = wait_for_holder(self._settings, self._name, error)
            stopped: dict[str, dict[str, str]] = done.get("stopped") or {}
            if self._json:
                output.print_json({"target": self._name, "by": error.holder, **done})
                return not stopped and not done["waiting_tables"]
            typer.echo(f"{self._name}: {error.holder} has delivered through offset {done['offset']}")
            for table, why in stopped.items():
                typer.echo(readable.plain(f"{self._name}: {table}: not delivered: {why['reason']}; {why['remedy']}"))
            return not stopped and not done["waiting_tables"]

    def deliver_or_wait(self, *, is_alone: bool) -> None:
        """Deliver like `deliver`, but print an error instead of raising it; the next call tries again.

        The same error is printed once. If the target `is_alone`, errors other than SinkUnavailable are raised.
        """
        try:
            self.deliver()
            self._waits = ""
        except CdcflowError as error:
            if is_alone and not isinstance(error, SinkUnavailable):
                raise
            text = "; ".join(filter(None, (str(error).splitlines()[0], error.remedy)))
            if text != self._waits:
                typer.echo(readable.plain(f"{self._name}: waits: {text}"), err=True)
            self._waits = text


def _in_words(one: TableDelivery) -> str:
    if one.problem:
        return f"not delivered: {one.problem}" + (f"; {one.remedy}" if one.remedy else "")
    if one.is_whole:
        return f"all {one.rows} rows, through offset {one.offset}"
    return f"{one.rows} rows, {one.deleted} deleted, through offset {one.offset}"
