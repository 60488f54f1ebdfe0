"""Who is notified of what: `service.notify`."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import is_reference
from cdcflow.config.units import Seconds

Topic = Literal["lag", "headroom", "backfill_done", "stopped"]


class Notify(Settings):
    """One receiver of notifications, by `webhook` or by `command`."""

    on: tuple[Topic, ...]
    """`service.notify` is a list of receivers; this is the list of events that the receiver gets, from `lag`,
    `headroom`, `backfill_done`, `stopped` ([notifications.md](notifications.md))."""
    webhook: str | None = None
    """A URL that gets a JSON object by POST; one that holds a secret is a reference to the whole URL."""
    command: tuple[str, ...] | None = None
    """Instead of a URL: a command, as a list, that gets the object on its standard input."""
    lag_over: Seconds = 300.0
    """`lag` is sent when the lag reaches this value."""
    headroom_under: float = Field(0.25, gt=0, lt=1)
    """`headroom` is sent when less than this share of the source's room for retained log is left."""

    @field_validator("on", "command")
    @classmethod
    def _something(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names == ():
            raise ValueError("is empty; leave the whole receiver out")
        return names

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
        if (self.webhook is None) == (self.command is None):
            raise ValueError("needs webhook or command: one of them for each receiver")
        return self
