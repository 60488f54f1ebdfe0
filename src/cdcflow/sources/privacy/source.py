"""Implements a source's ports around a source, and applies the settings' `tables` to the rows that pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.comparison import Comparable, Comparison
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.moves import Movable, MovePlan
from cdcflow.capture.ports.source import (
    Choosy,
    Collated,
    Covering,
    Described,
    EventComparison,
    Prepared,
    Preview,
    RowsElsewhere,
    Sample,
    Sampled,
    SecondOpinion,
    ShapeAsking,
    Source,
    SourceHistory,
    SourceStatus,
    TablePreview,
    TablesToReread,
    TransactionsBack,
)
from cdcflow.capture.ports.stream import Stream
from cdcflow.errors import CdcflowError, ConfigurationError, TableMisfit
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.findings import of_error, ok, warning
from cdcflow.sources.privacy.chunks import PrivateChunks, PrivateComparison
from cdcflow.sources.privacy.kernels import COMPILED, CompiledOpenssl
from cdcflow.sources.privacy.lost_names import read_lost_names
from cdcflow.sources.privacy.rules import PolicyRules, changed_policies, with_stored
from cdcflow.sources.privacy.stored_rules import StoredPolicies, raw_of, read_stored, without_stored
from cdcflow.sources.privacy.stream import PrivateSpool, PrivateStream, SpoolNotes
from cdcflow.sources.privacy.successors import read_successors


class PrivateSource:
    """Implements `cdcflow.capture.ports.source.Source` under rules; without any, rows pass unchanged.

    See `private_source` for the ports that only some sources implement.
    """

    def __init__(self, source: Source, rules: PolicyRules) -> None:
        self._source = source
        self._rules = rules
        self._stored: Mapping[TableId, StoredPolicies] = {}
        self._prepared: Sequence[Table] | None = None
        self._captured: frozenset[TableId] = frozenset()
        """The tables that are captured, or were before."""
        self._shape_of: Callable[[TableId], Table | None] = lambda table: None
        """Returns the shape of a table's latest rows in the log, if the source needs it."""

    # ── what rows, keys and shapes pass ─────────────────────────────────────────────────────────────────────

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        self._learn(checkpoint)
        prepared = self._source.prepare(
            _without(checkpoint), log_id, transactions_back, accept_history_loss=accept_history_loss
        )
        return self._under_rules(prepared, checkpoint)

    def _under_rules(self, prepared: Prepared, checkpoint: Checkpoint) -> Prepared:
        """Check the tables of a prepared start against the rules, and return it with their state. `checkpoint`: that of
        the last start."""
        if not self._rules and not self._stored:
            return prepared
        tables = self._source.tables()
        captured = self._check(tables, checkpoint)
        self._captured, self._prepared = captured.union(t.id for t in tables), tables
        if self._rules.person_keys is not None:
            self._rules.person_keys.create()
        if prepared.history is not SourceHistory.CONTINUES:
            self._rules.lose_names(tables, self._shape_before)
        fitting = [table for table in tables if self._rules.misfit_of(table) is None]
        changed = frozenset(self._changes(fitting, checkpoint))
        source = with_stored(prepared.checkpoint.source, self._rules, fitting, self._stored)
        return replace(
            prepared,
            checkpoint=replace(prepared.checkpoint, source=source),
            reread=prepared.reread | TablesToReread(changed, changed),
        )

    def _shape_before(self, table: TableId) -> Table | None:
        """Return a table as the source had it when the log got its latest row, or at the last start; None without
        rules."""
        stored = self._stored.get(table)
        logged = None if stored is None else self._shape_of(table)
        return stored.raw if logged is None and stored is not None else raw_of(logged, stored) if logged else None

    def tables(self) -> Sequence[Table]:
        found, self._prepared = self._prepared, None
        if found is None:
            found = self._source.tables()
            private = self._rules.private_among(self._captured)
            self._rules.check_names((t.id for t in found), self._captured, private)
            self._captured |= {t.id for t in found}
        return [self._rules.known_leaving(table) for table in found]

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        found = self._source.preview(_without(checkpoint), log_id)
        self._learn(checkpoint)
        shapes = [t.shape for t in found.tables if t.shape is not None]
        self._check(shapes, checkpoint)
        misfits = {shape.id: error for shape in shapes if (error := self._rules.misfit_of(shape)) is not None}
        changes = self._changes((shape for shape in shapes if shape.id not in misfits), checkpoint)
        tables = (_with_policies(t, changes.get(t.id, "")) for t in found.tables)
        return replace(found, tables=tuple(_with_misfit(t, misfits.get(t.id)) for t in tables))

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        if not self._rules:
            return self._source.stream(_without(checkpoint), open_spool)
        notes = SpoolNotes()
        stream = self._source.stream(_without(checkpoint), lambda: PrivateSpool(open_spool(), self._rules, notes))
        return PrivateStream(stream, self._rules, checkpoint.position or Position(""), notes)

    def chunks(self) -> ChunkSource:
        chunks = self._source.chunks()
        # Without rules a checkpoint may still have encrypted cursors.
        return PrivateChunks(chunks, self._rules) if self._rules or self._stored else chunks

    def _learn(self, checkpoint: Checkpoint) -> None:
        self._stored = read_stored(checkpoint.source)
        self._rules.learn(self._stored.values())
        self._rules.successors = read_successors(checkpoint.source)
        self._rules.lost_names = read_lost_names(checkpoint.source)

    def _check(self, tables: Sequence[Table], checkpoint: Checkpoint) -> frozenset[TableId]:
        """Check the tables of a start. Return the tables that were ever captured."""
        captured = frozenset(Progress.from_json(checkpoint.progress).tables)
        self._rules.check(tables, self._stored, captured)
        return captured

    def _changes(self, tables: Iterable[Table], checkpoint: Checkpoint) -> dict[TableId, str]:
        """Return the tables whose policies are not those of the last start; empty at the first start."""
        return {} if checkpoint.position is None else changed_policies(self._stored, self._rules, tables)

    # ── tables and positions ───────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        return self._source.identity()

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return self._source.left_out(None if checkpoint is None else _without(checkpoint))

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return self._source.compare_rows(known)

    def doctor(self) -> Sequence[Finding]:
        found = list(self._source.doctor())
        if not self._rules:
            return found
        try:
            tables = self._source.tables()
            self._rules.check(tables, {}, ())
        except ConfigurationError as error:
            return [*found, of_error("column policies", error)]
        except CdcflowError:
            return found  # the source's own findings contain the reason
        if self._rules.need_keys:
            found.append(kernels())
        unused = self._rules.unused_names(tables)
        found.append(ok("column policies", "; ".join(unused) or "each column with a policy exists"))
        return [*found, *self._collations(tables)]

    def _collations(self, tables: Iterable[Table]) -> Iterator[Finding]:
        """Return a warning for each table with columns that a condition compares byte by byte, but the server by a
        looser collation."""
        compared = {t.id: names for t in tables if (names := self._rules.texts_compared(t))}
        if not compared or not isinstance(self._source, Collated):
            return
        try:
            known = self._source.loose_collations()
        except CdcflowError as error:
            yield of_error("conditions", error)
            return
        for table, names in compared.items():
            loose = {name: one for name, one in known.get(table, {}).items() if name in names}
            if loose:
                listed = ", ".join(f"{name} ({collation})" for name, collation in sorted(loose.items()))
                yield warning(
                    str(table),
                    f"tables compares text byte by byte, and the server takes other texts for equal in {listed}: "
                    "'a' is not 'A' here",
                    "write all texts that are meant, or lower(COLUMN) = 'a', where rows would be missing",
                )

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        return self._source.continues(lambda: _without(newest()), log_id)

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return self._source.left_behind(log_id)

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        return self._source.drop(log_id, _without(checkpoint))

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        return self._source.status(acknowledged, log_id)

    def close(self) -> None:
        self._source.close()
        if self._rules.person_keys is not None:
            self._rules.person_keys.close()


# ── ports that only some sources implement ──────────────────────────────────────────────────────────────────


class _WithCoverage(PrivateSource):
    _source: _SomeSource

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        return self._source.coverage(captured)


class _WithShapes(PrivateSource):
    _source: _SomeSource

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        self._shape_of = shape_of

        def raw(table: TableId) -> Table | None:
            logged = shape_of(table)
            return None if logged is None else raw_of(logged, self._stored.get(table))

        self._source.use_shapes(raw)


class _WithSamples(PrivateSource):
    _source: _SomeSource

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        if table in self._rules.successors or table in self._rules.lost_names:
            return None
        found = self._rules.latest(table)
        if found is None:
            return self._source.sample(table, key)
        # With a filter, sampled rows may change without a change that leaves the source, and nothing is wrong.
        return None if found.filters else self._source.sample(table, found.raw_names(key))


class _WithSecondOpinion(PrivateSource):
    _source: _SomeSource

    def sample_events(self, *, wanted: bool) -> None:
        self._source.sample_events(wanted=wanted)

    def compare_event(self) -> EventComparison | None:
        return self._source.compare_event()


class _WithFacts(PrivateSource):
    _source: _SomeSource

    def facts(self) -> Mapping[str, str]:
        return self._source.facts()


class _WithComparison(PrivateSource):
    _source: _SomeSource

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        self._learn(checkpoint)
        comparison = self._source.comparison(_without(checkpoint))
        return PrivateComparison(comparison, self._rules) if self._rules else comparison


class _WithMoves(PrivateSource):
    _source: _SomeSource

    def plan_move(self, checkpoint: Checkpoint, log_id: str, *, compares: bool = False) -> MovePlan:
        self._learn(checkpoint)
        plan = self._source.plan_move(_without(checkpoint), log_id, compares=compares)
        shapes = [t.shape for t in plan.tables if t.shape is not None]
        self._check(shapes, checkpoint)
        return replace(plan, tables=tuple(self._leaving(t) for t in plan.tables))

    def move(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        compares: bool = False,
    ) -> Prepared:
        self._learn(checkpoint)
        prepared = self._source.move(_without(checkpoint), log_id, transactions_back, compares=compares)
        return self._under_rules(prepared, checkpoint)

    def _leaving(self, table: TablePreview) -> TablePreview:
        return table if table.shape is None else replace(table, shape=self._rules.known_leaving(table.shape))


class _WithRowsElsewhere(PrivateSource):
    _source: _SomeSource

    def rows_from(self) -> str:
        return self._source.rows_from()


class _SomeSource(
    Source, Covering, ShapeAsking, Sampled, SecondOpinion, Described, Comparable, Movable, RowsElsewhere, Protocol
):
    """A source with all the optional ports that a class above may need."""


_OPTIONAL: dict[type, type[PrivateSource]] = {
    Covering: _WithCoverage,
    ShapeAsking: _WithShapes,
    Sampled: _WithSamples,
    SecondOpinion: _WithSecondOpinion,
    Described: _WithFacts,
    Comparable: _WithComparison,
    Movable: _WithMoves,
    RowsElsewhere: _WithRowsElsewhere,
}


def private_source(source: Source, rules: PolicyRules) -> PrivateSource:
    """Return a source under rules, with the optional ports that `source` implements: callers recognize those by the
    type."""
    bases = tuple(kind for port, kind in _OPTIONAL.items() if isinstance(source, port))
    if rules and isinstance(source, Choosy):
        source.refuse_with(rules.check_new)
    made: PrivateSource = type("PrivateSource", bases or (PrivateSource,), {})(source, rules)
    return made


def kernels(compiled: CompiledOpenssl | None = COMPILED) -> Finding:
    """Return a finding on whether hashes are computed by the compiled kernel."""
    if compiled is not None:
        return ok("kernels of policies", "the compiled ones are in use")
    return warning(
        "kernels of policies",
        "the reference ones are in use, which need about six times as long to hash a value: there was no C compiler at "
        "install, no header of OpenSSL 3, or its library is not on this machine",
        "install them (Debian: apt install gcc python3-dev libssl-dev), then install cdcflow again",
    )


def _without(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint as the source without policies wrote it."""
    return replace(checkpoint, source=without_stored(checkpoint.source))


def _with_policies(table: TablePreview, changes: str) -> TablePreview:
    return replace(table, policies=changes) if changes else table


def _with_misfit(table: TablePreview, misfit: TableMisfit | None) -> TablePreview:
    return table if misfit is None else replace(table, misfit=str(misfit))
