"""The part that the sources of all servers share: which tables they capture, what a start would do, and their status.

    prepare   stored state ──▶ a position, found or checked by the dialect ──▶ state to store, tables to read again
    tables    as prepared; later as the catalog has them, without those that cannot be captured yet
    preview   what `prepare` would capture, with the same errors; nothing is changed

A dialect reads its catalog and its state, finds positions, and opens the stream and the chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.moves import MovePlan
from cdcflow.capture.ports.source import (
    Prepared,
    Preview,
    SourceHistory,
    SourceStatus,
    TablePreview,
    TransactionsBack,
)
from cdcflow.capture.ports.stream import Stream
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.position import Checkpoint, Position
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.connections import Connector, Session
from cdcflow.sources.engine.findings import of_error, ok
from cdcflow.sources.engine.moves import log_is_empty
from cdcflow.sources.engine.policies import ByShape, Policies
from cdcflow.sources.engine.selection import CapturedTableRefused, SelectableTable, Selected, Selection


class SourceState(Protocol):
    """The state that a dialect stores in the checkpoint's `source`."""

    def write(self) -> dict[str, str]: ...


C = TypeVar("C")
S = TypeVar("S", bound=SourceState)
E = TypeVar("E", bound=SelectableTable)
T = TypeVar("T")

Sizes = Mapping[TableId, tuple[int | None, int | None]]
"""Rows and bytes of tables, as the server estimates them; None if it has no estimate."""


@dataclass(frozen=True, slots=True)
class Move:
    """Marks a start that moves the log to this address. `compares`: see `cdcflow.capture.ports.moves.Movable.move`."""

    compares: bool = False


@dataclass(frozen=True, slots=True)
class Start(Generic[S]):
    """The arguments of `cdcflow.ports.Source.prepare`. `before`: the state that the last start stored. `move`: set if
    the start moves the log to this address, otherwise None."""

    checkpoint: Checkpoint
    log_id: str
    before: S | None
    transactions_back: TransactionsBack | None
    is_loss_accepted: bool
    move: Move | None = None


@dataclass(frozen=True)  # without slots: see `selection.Selected`
class Begun(Generic[S, E]):
    """Where a stream begins, the state to store, and the tables that it captures."""

    position: Position
    state: S
    selected: Selected[E]
    history: SourceHistory = SourceHistory.CONTINUES


class SqlSource(ABC, Generic[C, S, E]):
    """Implements the parts of `cdcflow.ports.Source` that do not depend on the server. `session` is for small queries.
    `session` and `connector` connect only when a method needs them, and are closed with the source."""

    def __init__(self, connector: Connector[C], session: Session[C]) -> None:
        self._connector = connector
        self._session = session
        self._state: S | None = None
        self._captured: frozenset[TableId] | None = None
        self._prepared_tables: Sequence[Table] | None = None
        self._left_out: tuple[TableId, ...] = ()
        self._refused: Mapping[TableId, str] = {}
        """The captured tables that could not be captured at the last check of the tables, with the reasons."""

    # ── what a dialect defines ──────────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def _selection(self) -> Selection:
        """The tables that the settings select, as patterns."""

    @abstractmethod
    def _read_state(self, stored: Mapping[str, str]) -> S | None:
        """Return the state that an earlier start stored; None at the first start."""

    @abstractmethod
    def _captured_by(self, state: S | None) -> frozenset[TableId]:
        """Return the tables that an earlier start captured."""

    @abstractmethod
    def _begin(self, connection: C, start: Start[S]) -> Begun[S, E]:
        """Find a position, or check an earlier one, through a separate connection. See `Source.prepare`."""

    @abstractmethod
    def _check_log(self, before: S | None, log_id: str) -> None:
        """Raise ConfigurationError if the server or the settings belong to another log than the one that stored
        `before`."""

    @abstractmethod
    def _select(self, before: S | None) -> Selected[E]:
        """Return the tables that the settings select now. `before`: the state that an earlier start of the log
        stored."""

    @abstractmethod
    def _check(self, selected: Selected[E], captured: frozenset[TableId]) -> None:
        """Raise ConfigurationError if these tables cannot be captured, or if the settings select no table.

        The latter is no error if tables that were `captured` are gone.
        """

    @abstractmethod
    def _describe(self, selected: Selected[E]) -> ByShape:
        """Return the shapes of these tables, sorted by name, with the policies of their columns."""

    @abstractmethod
    def _sizes(self, connection: C, tables: Sequence[Table]) -> Sizes:
        """Return the sizes of tables according to the server's statistics."""

    @abstractmethod
    def _open_stream(self, position: Position, state: S, open_spool: OpenSpool) -> Stream:
        """Open a stream of everything in the log after this position."""

    @abstractmethod
    def _check_continues(self, before: S, position: Position, newest: Callable[[], Checkpoint], log_id: str) -> str:
        """Check that the server has everything since a position, or since that of the `newest` checkpoint. Return the
        text of the finding that nothing is missing.

        Raises:
            HistoryLost, ConfigurationError: the server lacks something, or is not the log's.
        """

    @abstractmethod
    def _read_status(self, connection: C, acknowledged: Position | None, log_id: str) -> SourceStatus: ...

    def _connect(self, purpose: str) -> C:
        """Return a connection for the statements of a start."""
        return self._connector.connect(purpose)

    def _waiting(self, new: Sequence[E]) -> Collection[TableId]:
        """Return which of these tables, which appeared since `prepare`, cannot be captured yet."""
        return ()

    def _policies_of(self, state: S) -> Policies | None:
        """Return the policies that a state contains, or None if it lacks them."""
        return None

    def _with_policies(self, state: S, kept: Policies) -> S:
        """Return the state with these policies."""
        return state

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        before = self._read_state(checkpoint.source)
        return self._begin_at(Start(checkpoint, log_id, before, transactions_back, accept_history_loss))

    def _begin_at(self, start: Start[S]) -> Prepared:
        """Begin, and remember which tables are captured. The state to store includes the columns' policies."""
        before, checkpoint = start.before, start.checkpoint
        connection = self._connect("prepare")
        try:
            with self._connector.mapping_errors(f"preparing {self._connector.address}"):
                begun = self._begin(connection, start)
        finally:
            self._connector.discard(connection)
        self._captured = frozenset(t.id for t in begun.selected.good)
        self._refused = _reasons(begun.selected)
        kept = self._describe(begun.selected)
        # The caller calls `tables` next. The shapes are kept for that call, because there may be thousands to describe.
        self._prepared_tables = list(kept)
        self._state = self._with_policies(begun.state, policies.by_table(kept))
        prepared = replace(checkpoint, position=begun.position, source=self._state.write())
        reread = policies.tables_to_reread(self._policies_before(before), kept)
        return Prepared(prepared, begun.history, reread)

    def tables(self) -> Sequence[Table]:
        found, self._prepared_tables = self._prepared_tables, None
        return list(self._describe(self._select_again())) if found is None else found

    def _select_again(self) -> Selected[E]:
        """Return the captured tables among those that are selected now.

        A table that was created since `prepare` is not captured: the stream would never deliver its changes.
        """
        selected = self._select(None)
        if (captured := self._captured) is not None:
            everything, selected = selected, selected.only(captured)
            waiting = self._waiting([t for t in selected.good if t.id not in captured])
            self._left_out = tuple(sorted({*everything.left_out_of(selected), *waiting}))
            selected = selected.without(waiting).fail_alone(captured)
        self._check(selected, self._captured_by(self._state))
        self._refused = _reasons(selected)
        return selected

    def _fail_alone(self, selected: Selected[E], captured: Collection[TableId], checkpoint: Checkpoint) -> Selected[E]:
        """Return the selection of a start, in which refused tables that were `captured` stop no other table.

        Settings that do not fit a table stop a start, because an operator has just changed them, unless the table fails
        already.
        """
        failed = Progress.from_json(checkpoint.progress).lacking
        return selected.fail_alone(frozenset(captured) - (selected.misfits - failed))

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        if checkpoint is None:
            return self._left_out
        before = self._read_state(checkpoint.source)
        return self._select_for_start(before)[1]

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        before = self._read_state(checkpoint.source)
        self._check_log(before, log_id)
        selected, left_out = self._select_for_start(before)
        known = self._captured_by(before)
        selected = self._fail_alone(selected, known, checkpoint)
        self._check(selected, known)
        refused = _reasons(selected)
        kept, then = self._describe(selected), self._policies_before(before)
        why, other = policies.reread(then, kept), policies.otherwise(then, kept)
        found = self._session.ask("reading the statistics of tables", lambda c: self._sizes(c, list(kept)))
        tables = tuple(
            TablePreview(
                t.id,
                t.incarnation,
                *found.get(t.id, (None, None)),
                reread=why.get(t.id, ""),
                retried=other.get(t.id, ""),
                refused=refused.get(t.id, ""),
                shape=t,
            )
            for t in kept
        )
        return Preview(tables, left_out)

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        state = self._read_state(checkpoint.source)
        if checkpoint.position is None or state is None:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        return self._open_stream(checkpoint.position, state, open_spool)

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        checkpoint = newest()
        try:
            before = self._read_state(checkpoint.source)
            if before is None or checkpoint.position is None:
                return ()  # nothing was created at the server for this log
            found = self._check_continues(before, checkpoint.position, newest, log_id)
        except (HistoryLost, ConfigurationError) as error:
            return (of_error("position", error),)
        return (ok("position", found),)

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        found = self._session.ask(
            f"querying the status of {self._connector.address}", lambda c: self._read_status(c, acknowledged, log_id)
        )
        left_out = {"left_out": ", ".join(map(str, self._left_out))} if self._left_out else {}
        return replace(found, details={**found.details, **left_out})

    def close(self) -> None:
        self._connector.close()
        self._session.close()

    def _select_for_start(self, before: S | None) -> tuple[Selected[E], tuple[TableId, ...]]:
        """Return the tables with which a start continues, and the refused tables that it excludes."""
        found = self._select(before)
        return found.for_start(self._captured_by(before), self._selection, is_first=before is None)

    def _policies_before(self, before: S | None) -> Policies | None:
        return None if before is None else self._policies_of(before)


def _reasons(selected: Selected[E]) -> dict[TableId, str]:
    return {table: CapturedTableRefused(table, why).reason for table, why in selected.failing.items()}


class ComparableSource(SqlSource[C, S, E]):
    """A source whose tables `cdcflow verify` can compare."""

    @abstractmethod
    def _compare(self, selected: Selected[E], tables: Sequence[Table]) -> Comparison:
        """Begin a comparison of these tables. The source's state is the one stored by the log that is compared."""

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        self._state = self._read_state(checkpoint.source)
        selected = self._select(self._state)
        return self._compare(selected, list(self._describe(selected)))


class MovableSource(ComparableSource[C, S, E]):
    """A source whose log can move to another address (`cdcflow.capture.ports.moves.Movable`)."""

    @abstractmethod
    def _plan_move(self, connection: C, start: Start[S], before: S) -> MovePlan:
        """Return what a start that moves the log would do. Nothing is written."""

    def _state_to_move(self, checkpoint: Checkpoint, log_id: str) -> S:
        """Return the state that the last start of the log stored."""
        before = self._read_state(checkpoint.source)
        if before is None or checkpoint.position is None:
            raise log_is_empty()
        return before

    def move(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        compares: bool = False,
    ) -> Prepared:
        before = self._state_to_move(checkpoint, log_id)
        return self._begin_at(Start(checkpoint, log_id, before, transactions_back, False, Move(compares)))

    def plan_move(self, checkpoint: Checkpoint, log_id: str, *, compares: bool = False) -> MovePlan:
        before = self._state_to_move(checkpoint, log_id)
        start = Start(checkpoint, log_id, before, None, False, Move(compares))
        connection = self._connect("plan")
        try:
            with self._connector.mapping_errors(f"planning a move to {self._connector.address}"):
                return self._plan_move(connection, start, before)
        finally:
            self._connector.discard(connection)

    def _previews(self, connection: C, selected: Selected[E]) -> tuple[TablePreview, ...]:
        """The tables that a move would capture, with their sizes."""
        shapes = list(self._describe(selected))
        sizes = self._sizes(connection, shapes)
        return tuple(TablePreview(t.id, t.incarnation, *sizes.get(t.id, (None, None)), shape=t) for t in shapes)


def position_to_begin(again: Callable[[], T], first: Callable[[], T], *, is_loss_accepted: bool) -> T:
    """Return the earlier position, checked by `again`; or a new one by `first` if an operator accepted the loss of
    history.

    With the loss accepted, the position is new even if the earlier one is still valid: the cause that stopped the
    stream may be right after it.
    """
    try:
        found = again()
    except HistoryLost:
        if not is_loss_accepted:
            raise
    return first() if is_loss_accepted else found
