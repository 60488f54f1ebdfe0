"""Named consumers of a log: each has a durable cursor, one reader at a time, and its own backfill out of the log.

    with cdcflow.open("log").consumer("search", tables=["shop.orders"]) as consumer:
        for batch in consumer:
            ...                            # process batch.rows
            consumer.commit(batch.cursor)

Consumers do not query the source, and no daemon needs to run. A new consumer first gets the rows of its tables as of
one offset, then every change after it, in commit order. Each batch has a cursor: a reader that stores it together with
the result gets each row exactly once, with `read(after=…)`; a reader that commits it here after storing the result gets
each row at least once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.fold.completeness import ACTIVE
from cdcflow.log.fold.completeness import TableBackfill as Standing
from cdcflow.log.query.consumer import CURRENT, Consumer, MadeRows, NotWhole, States
from cdcflow.log.query.cursors import BackfillPart, ConsumerState, Cursor, Definition, LogBackfill
from cdcflow.log.query.log import AsOf, ChangeLog
from cdcflow.model.change import READ
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId, word

BATCH_ROWS = 10_000
NOW, BEGINNING = "now", "beginning"


@dataclass(frozen=True, slots=True)
class Listed:
    """A consumer and its progress: `behind` counts the offsets of the log that it has not processed; `seconds`: how
    long ago the oldest of these changes was committed (0: it has processed all; `None`: unknown). `held_by`: the
    process that reads it now."""

    state: ConsumerState
    behind: int
    seconds: float | None
    held_by: str | None


class Consumers:
    """The consumers of one log."""

    def __init__(self, log: ChangeLog, states: States) -> None:
        self._log = log
        self._states = states
        self._rows = MadeRows()

    def list_consumers(self) -> list[Listed]:
        """Return all consumers, sorted by name."""
        end = self._log.now().offset
        found = [state for name in self._states.names() if (state := self._states.read(name)) is not None]
        return [
            Listed(state, state.behind(end), self._seconds(state, end), self._states.holder(state.name))
            for state in found
        ]

    def create(self, definition: Definition, start: AsOf = CURRENT) -> ConsumerState:
        """Create a consumer. `start`: with the rows of its tables ("current"), after the latest change ("now"), with
        the oldest change that has not expired ("beginning"), or after a point in the log (see `ChangeLog.moment`).

        Raises:
            ConfigurationError: the name is in use, the log has no such table, or not all rows of one.
            Busy: another process is creating it.
        """
        definition.check()
        with self._states.lease(definition.name):
            if self._states.read(definition.name) is not None:
                raise ConfigurationError(
                    f"creating consumer {definition.name}: it already exists",
                    remedy=f"read it, or choose another name; `cdcflow consumer drop {definition.name}"
                    f"{self._states.options}` removes it",
                )
            return self._new_state(definition, start)

    def open(
        self,
        name: str,
        *,
        wait: float | None = 0.0,
        batch_rows: int = BATCH_ROWS,
        definition: Definition | None = None,
        start: AsOf = CURRENT,
    ) -> Consumer:
        """Return a consumer, to be entered as a context: its lease is held for the block. `definition`: with it the
        consumer is created if it does not exist; an existing one must have the same definition.

        Raises (on entering):
            ConfigurationError: it does not exist, or exists with another definition.
            Busy: another process reads it.
        """

        def stored_state() -> ConsumerState:
            state = self._states.read(name)
            if state is not None:
                self._check_log(state)
                self._check_same(state, definition)
                return state
            if definition is None:
                raise self.unknown(name)
            return self._new_state(definition, start)

        return Consumer(
            self._log, self._states, name, stored_state, self.begin, self._rows, wait=wait, batch_rows=batch_rows
        )

    def rest(self) -> None:
        """Release the rows that are cached for the next turn of a backfill."""
        self._rows.forget()

    def drop(self, name: str) -> None:
        """Remove a consumer with its cursor."""
        Definition(name).check()
        with self._states.lease(name):
            if self._states.read(name) is None:
                raise self.unknown(name)
            self._states.remove(name)

    def unknown(self, name: str) -> ConfigurationError:
        known = ", ".join(self._states.names()) or "none yet"
        return ConfigurationError(
            f"looking for consumer {name} of {self._log.name}: it has no consumer of that name; it has: {known}",
            remedy=f"create it: `cdcflow consumer create {name}{self._states.options}`",
        )

    def begin(self, state: ConsumerState, start: AsOf) -> ConsumerState:
        """Return the state of a consumer that begins, or begins again, as `create` describes. Not stored yet."""
        generation = state.generation + 1
        ops = state.definition.ops
        if start == CURRENT and (ops is None or READ in ops):
            return state.begin_again(generation, self.plan_backfill(state.definition), 0)
        if start in (NOW, CURRENT):
            return state.begin_again(generation, None, self._log.now().offset)
        if start == BEGINNING:
            return state.begin_again(generation, None, self._log.known.first_offset - 1)
        return state.begin_again(generation, None, self._log.moment(start).offset)

    def plan_backfill(self, definition: Definition) -> LogBackfill:
        """Return a backfill as of the end of the log. A table without rows is not part of it. A table that is being
        read at the source takes part with the changes that the log has of it.

        Raises:
            NotWhole: not all rows of a table are in the log, and the missing ones will not arrive.
        """
        moment = self._log.now()
        begins = self._log.known.first_offset
        parts: list[BackfillPart] = []
        lacking: dict[str, str] = {}
        for table in self._tables(definition):
            if self._log.rows.shape_at(table, moment.offset) is None:
                continue
            standing = self._log.known.standing(table, moment.offset)
            known = Standing.of(standing.entry)
            since = max(1, known.since)
            if standing.is_whole:
                parts.append(BackfillPart(str(table), max(1, known.floor or 1), is_rows=True))
            elif not known.base and known.state in {*ACTIVE, ""} and since >= begins:
                parts.append(BackfillPart(str(table), since, is_rows=False))
            elif definition.tables is not None or known.state != "forgotten":
                lacking[str(table)] = "; ".join(standing.notes)
        if lacking:
            told = ", ".join(f"{name} ({why})" for name, why in lacking.items())
            raise NotWhole(
                f"beginning consumer {definition.name} with the rows of its tables at offset {moment.offset}: {told}",
                list(lacking),
                f"run `cdcflow backfill {' '.join(map(word, lacking))}`, which has the log read them at the source, and"
                " try again; or begin without rows, with changes alone: --from now",
            )
        return LogBackfill(moment.offset, moment.commit_clock or 0, tuple(parts))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _new_state(self, definition: Definition, start: AsOf) -> ConsumerState:
        definition.check()
        self._tables(definition)
        log_id = self._states.log_id
        begins = Cursor(log_id, definition.name, 0, 0)
        state = self.begin(ConsumerState(definition, log_id, 0, None, begins, begins), start)
        self._states.write(state)
        return state

    def _tables(self, definition: Definition) -> list[TableId]:
        """Return the consumer's tables that the log has.

        Raises:
            ConfigurationError: the log has no such table.
        """
        known = {str(table): table for table in self._log.rows.shapes()}
        if definition.tables is None:
            return [known[name] for name in sorted(known)]
        captured = self._log.reader.newest_checkpoint().progress.get("tables", {})
        names = {*known, *(captured if isinstance(captured, dict) else ())}
        for name in definition.tables:
            if name not in names:
                raise ConfigurationError(
                    f"creating consumer {definition.name}: the log {self._log.name} has no table {name}; it has:"
                    f" {', '.join(sorted(names)) or 'none yet'}",
                    remedy=f"{did_you_mean(name, names)}name it as schema.table",
                    runbook="table-not-found",
                )
        return [known[name] for name in definition.tables if name in known]

    def _check_log(self, state: ConsumerState) -> None:
        if state.log_id != self._states.log_id:
            raise ConfigurationError(
                f"reading consumer {state.name}: it is a consumer of another log than {self._log.name}",
                remedy=f"read that log; or `cdcflow consumer drop {state.name}{self._states.options}`, and create it"
                " again for this one",
                runbook="other-log",
            )

    def _check_same(self, state: ConsumerState, definition: Definition | None) -> None:
        given = () if definition is None else (definition.tables, definition.ops)
        kept = state.definition
        if any(one is not None and one != had for one, had in zip(given, (kept.tables, kept.ops), strict=False)):
            raise ConfigurationError(
                f"reading consumer {state.name}: it was created with other tables or ops",
                remedy=f"do not give them: it keeps its own; or `cdcflow consumer drop {state.name}"
                f"{self._states.options}`, which forgets its cursor, and create it again",
            )

    def _seconds(self, state: ConsumerState, end: int) -> float | None:
        needed = state.committed.offset + 1
        if needed > end:
            return 0.0
        try:
            first = next(iter(self._log.transactions(first=needed, last=needed)), None)
        except HistoryLost:
            return None
        if first is None or not first.num_rows:
            return None
        return max(0.0, time.time() - float(first.column("commit_ts")[0].as_py().timestamp()))


__all__ = ["BEGINNING", "CURRENT", "NOW", "Consumers", "Listed"]
