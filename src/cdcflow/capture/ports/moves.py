"""A source that can move: its log continues at another address, server or database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.source import Prepared, TablePreview, TransactionsBack
from cdcflow.model.position import Checkpoint

Target = Literal["same", "upgraded", "other"]
"""same: the log's server, perhaps at another address, promoted, or with another name of its database. upgraded: what
the log's server became by an upgrade in place. other: a server that has the same tables."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move would do, according to the server.

    `came_from` and `server` describe the log's server and the target for operators; `text` explains how the target was
    recognized, or why changes are missing there. `is_whole`: the target has every change after the log's end; otherwise
    there will be a gap. `tables`: the tables captured there, with sizes. `steps`: the objects that the move creates or
    changes at the target. An error in `findings` means that the target refuses the move.
    """

    kind: Target
    is_whole: bool
    came_from: str
    server: str
    text: str
    tables: tuple[TablePreview, ...] = ()
    steps: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default_factory=tuple)


@runtime_checkable
class Movable(Protocol):
    """A source, opened at the address of the target, that can continue a log of another address."""

    def plan_move(self, checkpoint: Checkpoint, log_id: str, *, compares: bool = False) -> MovePlan:
        """Return what `move` would do. Nothing is changed. `compares`: as for `move`.

        Raises:
            ConfigurationError: the target can never continue this log, or lacks something that the move needs.
            SourceUnavailable: the target does not answer.
        """
        ...

    def move(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        compares: bool = False,
    ) -> Prepared:
        """Create what the log needs at the target, and return where it continues there, as `Source.prepare` does.

        The returned history is CONTINUES if the target has every change after `checkpoint.position`, otherwise MOVED.
        `transactions_back`: as for `Source.prepare`. `compares`: an operator requests a gap, after which the tables are
        compared, whether or not the target has the changes; so a target is accepted that lacks changes which the log
        has. If the process is killed during a move, the same call may be repeated.

        Raises:
            ConfigurationError, SourceUnavailable: see `plan_move`; the log can continue where it did before.
        """
        ...
