"""All parties that read a backlog: cdcflow, the limits, and the peers. Each call is one round of one party."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import contents, peers
from bench.harness import Child, Failed, Outcome, Party, together
from bench.server import KEPT, PUBLICATION, SLOT, Backlog, Server, fresh_log, settings

Verify = Callable[[Path], None]

RECVLOGICAL = "pg_recvlogical"
GO = "Go pglogrepl"
DEBEZIUM = "Debezium"
PYTHON = "psycopg.pq, Python decode"
RAW = "psycopg.pq to nowhere"
PEEK = "COPY(peek) to nowhere"
DECODE = "server-side decode"


def capture(backlog: Backlog, catch_up: str, verify: Verify) -> Party:
    """cdcflow into a fsynced log; the log is verified after the clock has stopped."""

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        with fresh_log(backlog.template, backlog.template.with_name("log")) as log:
            asked = {"config": settings(backlog.server, log, catch_up), "until_rows": backlog.rows}
            outcome = Child.of("capture", asked).outcome()
            verify(log)
        return outcome

    return run


def verified(backlog: Backlog) -> Verify:
    """The check that a backlog's log must pass. The source is read once."""
    source = contents.source_rows(backlog.server, backlog.shape)
    return lambda log: contents.verify(log, backlog.shape, source, backlog.rows)


def recvlogical(backlog: Backlog) -> Party:
    """The streaming path's limit: PostgreSQL's own client, in C, to nowhere."""

    def run() -> Outcome:
        server = backlog.server
        server.copy_slot(KEPT)
        options = ["proto_version=4", f"publication_names={PUBLICATION}", "binary=true", "messages=true"]
        options += ["streaming=on", "origin=any"]
        child = Child(
            [
                *(server.bin_directory / "pg_recvlogical", "-d", server.dsn, "-S", SLOT, "--start", "--no-loop"),
                *("-f", "/dev/null", "-E", backlog.end),
                *(part for option in options for part in ("-o", option)),
            ]
        )
        return child.outcome(backlog.rows)

    return run


def drain(backlog: Backlog, mode: str) -> Party:
    """psycopg.pq without cdcflow; see `children.drain`."""

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        asked = {"dsn": backlog.server.replication_dsn, "slot": SLOT, "publication": PUBLICATION}
        return _all(backlog, Child.of("drain", {**asked, "rows": backlog.rows, "mode": mode}).outcome())

    return run


def go(backlog: Backlog) -> Party | None:
    program = peers.go_drain()
    if program is None:
        return None

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        return _all(
            backlog, Child([program, backlog.server.replication_dsn, SLOT, PUBLICATION, str(backlog.rows)]).outcome()
        )

    return run


def debezium(backlog: Backlog) -> Party | None:
    command = peers.debezium_command(backlog.server.port, backlog.rows, **peers.spelled(peers.TUNED))
    if command is None or backlog.server.transport != "tcp":
        return None

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        outcome = Child(command).outcome()
        if outcome.found["seen"] != backlog.rows:
            raise Failed(f"Debezium saw {outcome.found['seen']} of {backlog.rows} changes")
        return outcome

    return run


def peeked(backlog: Backlog) -> Party:
    """The whole backlog through the SQL function and one COPY, in C, to nowhere."""

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        statement = f"COPY (SELECT lsn, xid, data FROM {_peek()}) TO STDOUT (FORMAT binary)"
        return copied(backlog.server, [statement], backlog.rows)

    return run


def decoded(backlog: Backlog) -> Party:
    """The server decodes the backlog and only counts it."""

    def run() -> Outcome:
        backlog.server.copy_slot(KEPT)
        return copied(backlog.server, [f"SELECT count(*) FROM {_peek()}"], backlog.rows)

    return run


def _peek() -> str:
    options = f"'proto_version', '4', 'publication_names', '{PUBLICATION}', 'binary', 'true', 'messages', 'true'"
    return f"pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, {options})"


def copied(server: Server, statements: list[str], rows: int) -> Outcome:
    """Run statements side by side with psql, which throws their output away."""
    psql: list[str | Path] = [server.bin_directory / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.dsn]
    return together([Child([*psql, "-c", s], to_nowhere=True) for s in statements], rows)


def _all(backlog: Backlog, outcome: Outcome) -> Outcome:
    if outcome.rows != backlog.rows:
        raise Failed(f"a party saw {outcome.rows} of {backlog.rows} changes")
    return outcome
