"""Who is notified of what: `service.notify`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import is_reference
from cdcflow.config.units import Seconds

Topic = Literal["lag", "headroom", "log_budget", "backfill_done", "contract", "cut_published", "stopped", "target"]
_EMPTY = "is empty; leave the whole receiver out"


class Subscription(Settings):
    """What every receiver of notifications has."""

    on: tuple[Topic, ...]
    """`service.notify` is a list of receivers; this is the list of events that the receiver gets, from `lag`,
    `headroom`, `log_budget`, `backfill_done`, `contract`, `cut_published`, `stopped`, `target`
    ([notifications.md](notifications.md))."""
    kind: str | None = None
    """Instead of a URL or a command: a kind of receiver that an installed package brings; the package specifies the
    other settings ([notifications.md](notifications.md#your-own-kind))."""
    lag_over: Seconds = 300.0
    """`lag` is sent when the lag reaches this value."""
    headroom_under: float = Field(0.25, gt=0, lt=1)
    """`headroom` is sent when less than this share of the source's room for retained log is left."""

    @field_validator("on")
    @classmethod
    def _some_events(cls, on: tuple[Topic, ...]) -> tuple[Topic, ...]:
        if not on:
            raise ValueError(_EMPTY)
        return on


class NotifierSettings(Subscription):
    """The settings that all kinds of receivers have that packages bring."""

    kind: str
    """The kind of the receiver, which an installed package brings."""


class Notify(Subscription):
    """One receiver of notifications, by `webhook`, by `command`, or as a `file`."""

    webhook: str | None = None
    """A URL that gets a JSON object by POST; one that holds a secret is a reference to the whole URL."""
    command: tuple[str, ...] | None = None
    """Instead of a URL: a command, as a list, that gets the object on its standard input."""
    file: Path | None = None
    """Instead of a URL: a file that has the latest object, replaced as a whole each time, for programs that poll
    ([notifications.md](notifications.md#after-each-cut)). Its `on` has one event."""

    @field_validator("command")
    @classmethod
    def _some_command(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command == ():
            raise ValueError(_EMPTY)
        return command

    @field_validator("webhook")
    @classmethod
    def _url(cls, webhook: str | None) -> str | None:
        if webhook is None or is_reference(webhook):
            return webhook
        if re.fullmatch(r"https?://[^\s]+", webhook) is None:
            raise ValueError(
                "must be a URL such as https://host/path, or a reference to one: ${env:NAME} or ${file:path}"
            )
        if re.match(r"https?://[^/]*@", webhook) or re.search(r"[?&][^=&]*(token|key|secret|password)[^=&]*=", webhook):
            raise ValueError("holds a secret; write a reference to the whole URL: ${env:NAME} or ${file:path}")
        return webhook

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [way for way in (self.webhook, self.command, self.file) if way is not None]
        if len(ways) != 1 or self.kind is not None:
            raise ValueError(
                "needs webhook, command or file: one of them for each receiver, or the kind of an installed one"
            )
        if self.file is not None and len(self.on) > 1:
            raise ValueError("has a file, which holds one event only: write a receiver for each event in on")
        return self
