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
    """What a move does, according to the server. `came_from` and `server` describe the log's server and the target for
    operators, `text` how the target was recognized, or why changes are missing there.

    `is_whole`: the target has every change after the log's end; otherwise there will be a gap. `tables`: what is
    captured there, with sizes. `steps`: what the move creates or changes at the target. An error in `findings` refuses
    it.
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
        """What `move` would do. Nothing is changed. `compares`: as for `move`.

        Raises:
            ConfigurationError: the target can never continue this log, or what the move needs is missing there.
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

        History CONTINUES if the target has every change after `checkpoint.position`, otherwise MOVED.
        `transactions_back`: as for `Source.prepare`. `compares`: an operator requests a gap, after which the tables are
        compared, whatever the target has; so a target is accepted that lacks changes which the log has. A process that
        was killed may be followed by the same call.

        Raises:
            ConfigurationError, SourceUnavailable: see `plan_move`; the log can continue where it did before.
        """
        ...
