"""Notifications of a test: while a block runs, and of its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces.notices import Tables
from cdcflow.daemon.interfaces.notifications import (
    LOOK_EVERY_S,
    PAUSES_S,
    Notifier,
    ReceiverSettings,
    StatusOf,
)


@contextlib.contextmanager
def notifying(
    receivers: Sequence[ReceiverSettings],
    status: StatusOf,
    tell: OnEvent,
    *,
    tables: Tables | None = None,
    look_every_s: float = LOOK_EVERY_S,
    pauses_s: Sequence[float] = PAUSES_S,
) -> Iterator[None]:
    """Notify while the block runs, and of its end.

    `tables`: the log's tables before, so that what was read already is no news.
    """
    made = Notifier(status, tell, look_every_s=look_every_s, pauses_s=pauses_s)
    made.use(receivers, tables or {})
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
        raise
    finally:
        made.end(ended)
