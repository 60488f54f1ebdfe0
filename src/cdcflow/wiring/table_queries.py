"""SQL over the tables of a pipeline, without Spark: of a published cut, or of the log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcflow.config import Config
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.read.moments import place_of, sealed_checkpoint
from cdcflow.model.position import Position, position_text
from cdcflow.sources.mysql.gtids import Flavor, gtid_set
from cdcflow.wiring.logs import log_id, log_reader, sealed_layout
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse

if TYPE_CHECKING:
    import pyarrow as pa

    from cdcflow.tables.cut import Cut
    from cdcflow.tables.job.live import Live
    from cdcflow.tables.local.engine import LocalEngine
    from cdcflow.tables.query_answer import QueryAnswer

MEMORY_BYTES = 1 << 30
"""How much memory a query may use if `merge.memory_max` is not set; the rest is in temporary files."""

POLL_S = 0.1
_TRANSACTION = re.compile(r"transaction:(\d+)")


@dataclass(frozen=True, slots=True)
class AskedPoint:
    """Which point in time a query shows: the latest published cut, or with `live` the latest sealed cut of the log.

    `as_of`: the latest published one at or before a cut's number, a position or a time, or the first one that shows a
    transaction of the log (`transaction:512`). `at_least`: not before this
    position of the source (an LSN, `binlog.000003:77` or GTIDs), for which it waits up to `wait_s` seconds.
    `incomplete`: also tables that lack rows.
    """

    live: bool = False
    as_of: str | None = None
    at_least: str | None = None
    wait_s: float = 60.0
    incomplete: bool = False

    def __post_init__(self) -> None:
        if self.as_of is not None and (self.live or self.at_least is not None):
            raise ConfigurationError(
                "a query has both a past point in time (as-of) and a later one (at-least, or the log)",
                remedy="name one of them",
                runbook="settings",
            )


def ask(config: Config, sql: str, asked: AskedPoint) -> QueryAnswer:
    """Answer one SELECT in DuckDB's SQL over the tables of the configured pipeline.

    Raises:
        ConfigurationError: the query is refused, a table is excluded or lacks rows, or only Spark
            reaches the warehouse.
        HistoryLost: it has expired.
        SinkUnavailable: the tables did not reach `at_least` in time.
    """
    from cdcflow.tables.local.table_queries import CutPoint, LivePoint, answer
    from cdcflow.tables.query_answer import QueryAnswer

    memory = config.merge.memory_max or MEMORY_BYTES
    with _engine(config) as engine:
        if asked.live:
            _wait_for(config, asked, lambda: sealed_checkpoint(sealed_layout(config)).next_offset - 1)
            live = LivePoint(
                _live(config, engine, None, asked, without_rows=True),
                lambda names: _live(config, engine, names, asked),
                incomplete=asked.incomplete,
            )
            rows, found = answer(sql, live, memory), live.found
            return QueryAnswer(rows, found.cut, found.position, found.commit_clock)
        _wait_for(config, asked, lambda: _offset_of(config, engine.cuts().newest()))
        cut = _cut(config, engine, asked)
        rows = answer(sql, CutPoint(engine, warehouse(config), cut, incomplete=asked.incomplete), memory)
        return QueryAnswer(rows, cut.cut, cut.position, cut.commit_clock)


def states_of_tables(config: Config, asked: AskedPoint) -> dict[str, str]:
    """Return the state of each table that a query may name, by its name: "complete", or a text for what it lacks."""
    with _engine(config) as engine:
        if asked.live:
            found = _live(config, engine, None, asked, without_rows=True)
            return {**dict.fromkeys(found, "complete"), **found.incomplete, **found.left_out}
        cut = _cut(config, engine, asked)
        shown = {name: "complete" if one.complete else one.state for name, one in cut.tables.items()}
        return {**shown, **cut.left_out}


def _cut(config: Config, engine: LocalEngine, asked: AskedPoint) -> Cut:
    from cdcflow.tables.job import moments

    number = None if asked.as_of is None else _TRANSACTION.fullmatch(asked.as_of.strip())
    if number is not None:
        return _cut_with_transaction(config, engine, int(number[1]))
    return moments.find(engine.cuts(), warehouse(config), None, asked.as_of)


def _cut_with_transaction(config: Config, engine: LocalEngine, number: int) -> Cut:
    """The first published cut that shows a transaction of the log.

    Raises:
        ConfigurationError: the log has no such transaction, or no cut shows it yet.
        HistoryLost: that cut has expired.
    """
    from cdcflow.tables.cut import cut_expired
    from cdcflow.wiring.queries import open_for_queries

    last = open_for_queries(config).transaction(number, limit=1).last_offset
    cuts, first, is_first = engine.cuts(), None, False
    for listed in reversed(cuts.list_cuts()):
        cut = cuts.cut_by_number(listed.cut)
        if is_first := _offset_of(config, cut) < last:
            break
        first = cut
    if first is None:
        raise ConfigurationError(
            f"reading {warehouse(config)} as of transaction {number}: no published cut shows it yet",
            remedy="run `cdcflow merge` first",
            runbook="no-cut",
        )
    if not is_first and (expired := cuts.latest_expired()):
        raise cut_expired(warehouse(config), expired, expired)
    return first


@contextmanager
def _engine(config: Config) -> Iterator[LocalEngine]:
    from cdcflow import local
    from cdcflow.tables.formats import format_for

    place = warehouse(config)
    if not is_merged_here(config, place):
        raise ConfigurationError(
            f"asking the tables of {place}: only Spark reaches this warehouse",
            remedy="ask with Spark (cdcflow.spark.read_cut), or set merge.engine to local, with merge.objects for a"
            " bucket",
            runbook="merge-session",
        )
    with closing(local.local_engine(place, format_for(place, config.merge.format))) as engine:
        yield engine


def _live(
    config: Config,
    engine: LocalEngine,
    names: Collection[str] | None,
    asked: AskedPoint,
    *,
    without_rows: bool = False,
) -> Live[pa.Table]:
    from cdcflow.tables.job import live
    from cdcflow.tables.local.live import LocalReader

    reader = LocalReader(engine, without_rows=without_rows)
    layout, place = sealed_layout(config), warehouse(config)
    return live.read(reader, layout, place, names, incomplete=asked.incomplete, policies=policies(config))


# ── waiting for a position ──────────────────────────────────────────────────────────────────────────────────


def _wait_for(config: Config, asked: AskedPoint, offset: Callable[[], int]) -> None:
    """Wait until the tables have everything up to a position of the source. `offset`: returns the last offset that they
    have.

    The log determines the offset to wait for: when its latest cut is at the position, its last row is the last that may
    count. So the tables need not change where nothing in them does.
    """
    if asked.at_least is None:
        return
    until = time.monotonic() + asked.wait_s
    reader, last = log_reader(config), None
    while True:
        if last is None:
            checkpoint = reader.newest_checkpoint()
            if is_reached(checkpoint.position, asked.at_least):
                last = checkpoint.next_offset - 1
        if last is not None and offset() >= last:
            return
        if time.monotonic() > until:
            raise _not_reached(asked, "the log" if last is None else "the tables")
        time.sleep(POLL_S)


def is_reached(position: Position | None, wanted: str) -> bool:
    """Whether a position of the source is at or after another, written as an LSN, `binlog.000003:77` or GTIDs.

    Raises:
        ConfigurationError: `wanted` is something else, or the two cannot be compared.
    """
    text = position_text(position)
    if text is None:
        return False
    here, there = place_of(text), place_of(wanted)
    if there is None:
        return _has_gtids(text, wanted)
    if here is None or here[0] != there[0]:
        raise ConfigurationError(
            f"waiting for position {wanted}: the source's positions are like {text.partition(';')[0]}",
            remedy="name one of that kind",
            runbook="settings",
        )
    return here >= there


def _has_gtids(text: str, wanted: str) -> bool:
    own = text.split(";")[1] if ";" in text else ""
    flavor: Flavor = "mysql" if ":" in own else "mariadb"
    return gtid_set(flavor, own).covers(gtid_set(flavor, wanted))


def _not_reached(asked: AskedPoint, what: str) -> SinkUnavailable:
    remedy = "see `cdcflow status`; ask again, or wait longer with --wait"
    return SinkUnavailable(
        f"{what} did not reach position {asked.at_least} within {asked.wait_s:g} s", remedy=remedy, runbook="busy"
    )


def _offset_of(config: Config, cut: Cut | None) -> int:
    """Return the last offset of the configured log that a cut shows."""
    own = None if cut is None else cut.part_of(log_id(config))
    return 0 if own is None else own.offset
