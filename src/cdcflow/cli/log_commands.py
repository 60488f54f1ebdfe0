"""`cdcflow log …`: show the change log, and maintain it. All of it works while a daemon runs."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json, OnMaster
from cdcflow.config import KafkaLog, byte_count, load, seconds
from cdcflow.errors import ConfigurationError
from cdcflow.log.read.last_rows import first_of_last, rows_in_order
from cdcflow.reports import readable
from cdcflow.reports.log_records import command_parts, gap_parts, repair_parts, segment_parts, topic_range_parts
from cdcflow.reports.log_rows import log_row_line

if TYPE_CHECKING:
    from cdcflow.capture.interleave.progress import CommandRecord, GapRecord, RepairRecord
    from cdcflow.log.maintenance.retention import ExpiryRule
    from cdcflow.log.read.log_reader import LogReader
    from cdcflow.model.table import TableId
    from cdcflow.reports.parts import Parts

app = typer.Typer(no_args_is_help=True, help="Inspect the change log, and maintain it.")
FOLLOW_EVERY_S = 0.5


@app.command()
def show(
    table: Annotated[str | None, typer.Option(help="Only this table, as schema.table.")] = None,
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="The first offset; without it the latest rows.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new changes, until Ctrl-C.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print changes, one per line.

    Each line has offset, transaction, commit time, op (c u d r t), table and values.
    """
    log = _log(config)
    only = None if table is None else _table(log, table)
    after = first if first is not None else first_of_last(log, only, limit)
    shown = 0
    while True:
        end = _end(log)
        for offset, line in _lines(log, only, after, end, json):
            typer.echo(line)
            after, shown = offset + 1, shown + 1
            if shown >= limit and not follow:
                return
        after = max(after, end)
        if not follow:
            return
        time.sleep(FOLLOW_EVERY_S)


@app.command("ls")
def list_segments(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """List the sealed segments, or the topic ranges of a log in Kafka."""
    settings = load(config)
    log = _log(config)
    if isinstance(settings.log, KafkaLog):
        _list_topic_ranges(settings.log, log, json)
        return
    from cdcflow import wiring
    from cdcflow.log.read import reader

    segments = reader.list_segments(wiring.log_layout(settings.log))
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    output.show(segment_parts(segments, _end(log)))


@app.command("commands")
def list_commands(
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest.")] = 50,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """List the commands that operators gave to the capture.

    Who gave them, how, when, and with what outcome.
    """
    from cdcflow import wiring

    _log(config)
    found = wiring.commands_in_log(load(config), limit)
    _show_numbered(found, command_parts(found), json)


@app.command("repairs")
def list_repairs(
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest.")] = 50,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """List the repairs of rows.

    Where they are in the log, and between which positions the log may be wrong about these rows.
    """
    from cdcflow import wiring

    _log(config)
    found = wiring.repairs_in_log(load(config), limit)
    _show_numbered(found, repair_parts(found), json)


@app.command("gaps")
def list_gaps(
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest.")] = 50,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """List the gaps: ranges of the source's log that are missing here.

    The change log has no change of any table between a gap's two positions in the source's log.

    Its rows at the gap's offset and after it were committed, or read, after the gap.
    """
    from cdcflow import wiring

    _log(config)
    found = wiring.gaps_in_log(load(config), limit)
    _show_numbered(found, gap_parts(found), json)


@app.command()
def check(
    config: ConfigPath = DEFAULT_CONFIG,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row again, not only the hashes.")] = False,
    json: Json = False,
) -> None:
    """Verify hashes, chain and order, and that nothing is missing. Exits with 1 when something is wrong."""
    from cdcflow import wiring

    settings = load(config)
    report = _log(config).check(deep=deep)
    report = replace(report, faults=(*report.faults, *wiring.store_faults(settings)))
    if json:
        output.print_json(asdict(report))
    else:
        for fault in report.faults:
            typer.echo(f"wrong: {fault.where}: {fault.text}")
        parts = "topic ranges" if isinstance(settings.log, KafkaLog) else "journals"
        seen = f"{report.segments} segments, {report.journals} {parts}, {report.transactions:,} transactions"
        verdict = "the log is whole" if report.is_whole else f"{len(report.faults)} faults"
        typer.echo(f"{verdict}: {seen}, {report.rows:,} rows, {readable.size(report.bytes)}")
    if not report.is_whole:
        raise typer.Exit(failure.FINDINGS)


@app.command()
def compact(
    config: ConfigPath = DEFAULT_CONFIG,
    bytes_max: Annotated[str, typer.Option(help="No segment becomes larger than this.")] = "256MiB",
    grace: Annotated[str, typer.Option(help="Replaced segments remain this long for their readers.")] = "10m",
    on: OnMaster = None,
    json: Json = False,
) -> None:
    """Combine several small segments into one.

    On disk and in the object store. May run while the daemon does.
    """
    from cdcflow import wiring
    from cdcflow.log.files.compaction import CompactionRule

    settings = load(config)
    retention = wiring.retention(settings, grace_s=seconds(grace, zero=True))
    _log(config)
    with wiring.workers(settings, on, "compacting") as workers:
        made = retention.compact(CompactionRule(byte_count(bytes_max)), workers)
    if json:
        output.print_json([{"first": s.first_offset, "last": s.last_offset, "of": count} for s, count in made])
        return
    for segment, count in made:
        typer.echo(f"{segment.first_offset}-{segment.last_offset}: {readable.size(segment.size)}, of {count} segments")
    typer.echo(f"{sum(count for _, count in made)} segments became {len(made)}")


@app.command()
def expire(
    config: ConfigPath = DEFAULT_CONFIG,
    older_than: Annotated[str | None, typer.Option(help="Segments that ended at least this long ago (30d).")] = None,
    bytes_max: Annotated[
        str | None, typer.Option(help="The oldest segments while all together are larger than this.")
    ] = None,
    before_cut: Annotated[int | None, typer.Option(help="Segments that end before this cut.")] = None,
    state: Annotated[
        bool, typer.Option("--state", help="First keep every table's rows as of the end of what expires.")
    ] = False,
    on: OnMaster = None,
    json: Json = False,
) -> None:
    """Remove the oldest segments permanently.

    On disk and in the object store. May run while the daemon does.
    """
    if older_than is None and bytes_max is None and before_cut is None:
        raise ConfigurationError(
            "expiring segments: no limit is given", remedy="give --older-than, --bytes-max or --before-cut"
        )
    if on is not None and not state:
        raise ConfigurationError(
            "expiring segments with executors: they fold the tables that are kept, but no table will be",
            remedy="give --state, too, or omit --on",
        )
    from cdcflow import wiring
    from cdcflow.log.maintenance import state_writer
    from cdcflow.log.maintenance.expiry import left_behind
    from cdcflow.log.maintenance.retention import GRACE_S, ExpiryRule

    settings = load(config)
    retention = wiring.retention(settings, grace_s=GRACE_S)
    _log(config)
    clock = None if older_than is None else int((time.time() - seconds(older_than)) * 1e6)
    rule = ExpiryRule(before_cut, clock, None if bytes_max is None else byte_count(bytes_max))
    left = retention.sweep()
    if state:
        rule = _with_state(config, rule, on)
    gone = retention.expire(rule)
    if state and gone:
        state_writer.tidy(wiring.sealed_layout(load(config)))
    if json:
        finished = [{"first": first, "last": last, "bytes": None, "interrupted": True} for first, last in left]
        expired = [{"first": s.first_offset, "last": s.last_offset, "bytes": s.size} for s in gone]
        output.print_json([*finished, *expired])
        return
    if left:
        typer.echo(
            f"finished an interrupted expiry: the rest of {len(left)} segments"
            f" (offsets {left[0][0]}-{max(last for _, last in left)}) is gone"
        )
    if not gone:
        typer.echo(f"no {'other ' if left else ''}segment is old enough; the latest one always remains")
        return
    size = readable.size(sum(s.size for s in gone))
    typer.echo(f"{len(gone)} segments ({size}) are gone; the log begins at offset {gone[-1].last_offset + 1}")
    for name in left_behind(wiring.sealed_layout(settings)):
        typer.echo(f"consumer {name} had not read all of them: `cdcflow consumer restart {name}`")


def _with_state(config: Path, rule: ExpiryRule, on: str | None) -> ExpiryRule:
    """Store all tables' rows at the end of the segments that a rule expires. Return a rule that expires no later
    segment.

    Raises:
        ConfigurationError: not all of them are known there.
    """
    from cdcflow import wiring
    from cdcflow.log.maintenance.retention import expiring
    from cdcflow.log.read.reader import list_segments

    settings = load(config)
    due = expiring(list_segments(wiring.sealed_layout(settings)), rule)
    if not due:
        return rule
    end = due[-1].last_offset
    with wiring.workers(settings, on, "keeping a state") as workers:
        lacking = wiring.keeping(settings, workers).keep_state(end)
    if lacking:
        raise ConfigurationError(
            f"expiring segments up to offset {end}: not all tables can be kept. {lacking}",
            remedy="expire less (--before-cut), wait until the tables are read, or omit --state and have these tables"
            " read again with `cdcflow backfill TABLE`",
            runbook="log-expired",
        )
    return replace(rule, last_offset_max=end)


@app.command()
def index(
    anew: Annotated[bool, typer.Option("--anew", help="Rebuild the whole index.")] = False,
    on: OnMaster = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Index the keys of what is sealed and not indexed yet.

    With this index, a row is found without reading the log. The daemon does it by itself (log.index). May run while
    the daemon does.
    """
    from cdcflow import wiring
    from cdcflow.log.maintenance.index import Indexing

    settings = load(config)
    layout = wiring.sealed_layout(settings)
    _log(config)
    with wiring.workers(settings, on, "indexing") as workers:
        indexing = Indexing(layout, workers=workers)
        done = indexing.step(anew=anew)
    files, size = indexing.size()
    if json:
        output.print_json({"indexed": done, "files": files, "bytes": size, "last_offset": indexing.last_offset})
        return
    typer.echo(
        f"{done} segments were indexed; the index has {files} files ({readable.size(size)}) and reaches offset"
        f" {indexing.last_offset}"
    )


@app.command()
def copy(
    to: Annotated[
        Path,
        typer.Option(
            "--to", help="The settings file that names the copy: a topic for a log in a folder, or the other way round."
        ),
    ],
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Copy the log into the one that other settings name. A repeated copy adds what is new."""
    from cdcflow import wiring

    def report_copied(first: int, last: int) -> None:
        if not json:
            typer.echo(f"copied offsets {first}-{last}")

    copied = wiring.copy_log(load(config), load(to), report_copied)
    if json:
        output.print_json(asdict(copied))
        return
    typer.echo(f"the copy has everything up to offset {copied.next_offset - 1}, cut {copied.cut}")
    if copied.left:
        typer.echo(f"{copied.left} rows more are not sealed yet: copy again when they are, or stop the daemon first")


def _log(config: Path) -> LogReader:
    from cdcflow import wiring

    return wiring.existing_log(load(config))


def _show_numbered(found: Sequence[CommandRecord | RepairRecord | GapRecord], parts: Parts, json: bool) -> None:
    if json:
        output.print_json([{"number": one.number, **one.to_json()} for one in found])
    else:
        output.show(parts)


def _list_topic_ranges(settings: KafkaLog, log: LogReader, json: bool) -> None:
    """Print the parts of a topic that can be read by themselves: where each begins."""
    from cdcflow import wiring
    from cdcflow.sinks.kafka.reader import KafkaReader

    topic_ranges = KafkaReader(wiring.topics(settings.kafka)).topic_ranges()
    history = wiring.history_layout(settings)
    if json:
        output.print_json(
            [
                {"place": r.topic_offset, "first_offset": r.first_offset, "newest_xid": r.newest_xid}
                for r in topic_ranges
            ]
        )
        return
    output.show(topic_range_parts(topic_ranges, _end(log)))
    typer.echo(f"{len(topic_ranges)} ranges in {log.name}")
    if history.exists():
        offsets = history.segment_offsets()
        upto = f"offsets {offsets[0][0]}-{offsets[-1][1]}" if offsets else "none yet"
        typer.echo(f"{len(offsets)} sealed segments in the history {history.name}: {upto}")


def _table(log: LogReader, name: str) -> TableId:
    from cdcflow.http.explorer import table_named  # it loads pyarrow, which the help does not need

    return table_named(log, name)


def _end(log: LogReader) -> int:
    """The offset after the latest visible row."""
    return int(log.newest_checkpoint().next_offset)


def _lines(log: LogReader, table: TableId | None, first: int, end: int, json: bool) -> Iterator[tuple[int, str]]:
    for offset, (shape, row) in rows_in_order(log, table, first, end):
        if json:
            text = json_text.dumps({"_table": str(shape.id), **row}, default=str, ensure_ascii=False)
        else:
            text = log_row_line(shape, row)
        yield offset, text
