"""Queries a server about its binary log: the end, the files, the transactions in it; and the server's identity."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pymysql

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.connection import Connection, at_once, query, query_row, version_of
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, Coordinate, coordinate


@dataclass(frozen=True, slots=True)
class BinlogEnd:
    """The end of the binary log, whether its last transactions are visible or not. `filters`: the databases that the
    log excludes."""

    file: BinlogFile
    pos: int
    filters: str

    @property
    def coordinate(self) -> Coordinate:
        return coordinate(self.file, self.pos)


RENAMED = (8, 2)
"""The MySQL version with a new statement for the end of the log; from 8.4 the old statement no longer exists."""


def end_statement(connection: Connection) -> str:
    """Return the statement that queries the end of this server's binary log (M56)."""
    text = connection.get_server_info()
    is_renamed = "MariaDB" not in text and version_of(text) >= RENAMED
    return "SHOW BINARY LOG STATUS" if is_renamed else "SHOW MASTER STATUS"


def end(connection: Connection) -> BinlogEnd:
    """Return the current end of the server's binary log.

    Raises:
        ConfigurationError: the server writes no binary log.
    """
    rows = query(connection, end_statement(connection))
    if not rows:
        raise ConfigurationError(
            "the server writes no binary log, so there are no changes to read",
            remedy="set log_bin in the server's configuration, and restart it",
            runbook="server-settings",
        )
    file, pos, do_db, ignore_db, *_ = rows[0]
    filters = "; ".join(f"{n} {v}" for n, v in (("binlog_do_db", do_db), ("binlog_ignore_db", ignore_db)) if v)
    return BinlogEnd(BinlogFile(str(file)), int(pos), filters)


@contextlib.contextmanager
def bounded_snapshot(connection: Connection) -> Iterator[tuple[str, BinlogEnd, bool]]:
    """Take a MySQL snapshot. Provides the transactions that it certainly sees, as a set of GTIDs, the log's end just
    after it, and whether it sees exactly these.

    It sees exactly these if no transaction was being committed and the set has not changed in between: a transaction
    that became visible in between would be owned by a session, or already be in the later set.
    """
    before, _, owners, after = at_once(
        connection,
        "SELECT @@GLOBAL.gtid_executed",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        "SELECT @@GLOBAL.gtid_owned",
        end_statement(connection),
    )
    try:
        file, pos, _, _, executed, *_ = after[0]
        seen, now = ("".join(str(text).split()) for text in (before[0][0], executed))
        yield seen, BinlogEnd(BinlogFile(str(file)), int(pos), ""), seen == now and not owners[0][0]
    finally:
        with contextlib.suppress(pymysql.Error):
            query(connection, "ROLLBACK")


@contextlib.contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Open a transaction that sees the rows as of now. It writes nothing, and ends with the block."""
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        yield
    finally:
        with contextlib.suppress(pymysql.Error):
            query(connection, "ROLLBACK")


def snapshot_end(connection: Connection) -> BinlogEnd:
    """Return the position of this transaction's snapshot in MariaDB's binary log: it sees everything before that
    position, and nothing after."""
    found = {str(k).lower(): v for k, v in query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    if not found.get("binlog_snapshot_file"):
        raise ConfigurationError(
            "the server writes no binary log, so there are no changes to read",
            remedy="set log_bin in the server's configuration, and restart it",
            runbook="server-settings",
        )
    return BinlogEnd(BinlogFile(str(found["binlog_snapshot_file"])), int(found["binlog_snapshot_position"]), "")


ENCRYPTED_HEADER_BYTES = 512
"""The header of a file that MySQL encrypts (`binlog_encryption`): part of its size, but not of positions in it."""


def files(connection: Connection) -> list[tuple[BinlogFile, int]]:
    """Return the binary log's files, oldest first, each with the position at which it ends."""
    return [
        (BinlogFile(str(name)), int(size) - ENCRYPTED_HEADER_BYTES * (encrypted == ["Yes"]))
        for name, size, *encrypted in query(connection, "SHOW BINARY LOGS")
    ]


def executed_gtids(connection: Connection) -> str:
    """Return the transactions that every later MySQL snapshot sees, as a set of GTIDs."""
    return "".join(str(query_row(connection, "SELECT @@GLOBAL.gtid_executed")[0]).split())


@dataclass(frozen=True, slots=True)
class _Listed:
    """An event as the server lists it. `end`: the position after it."""

    sort: str
    end: int
    info: str


def _events(connection: Connection, file: BinlogFile, pos: int, limit: int) -> list[_Listed]:
    """Return the events from a position.

    A statement is listed in the bytes of its client's character set, whatever the session's is: bytes that are not
    UTF-8 are U+FFFD here.
    """
    connection.use_unicode = False
    try:
        rows = query(connection, f"SHOW BINLOG EVENTS IN '{_plain(file)}' FROM {pos} LIMIT {limit}")
    finally:
        connection.use_unicode = True
    return [_Listed(row[2].decode(), int(row[4]), (row[5] or b"").decode(errors="replace")) for row in rows]


def executed_before(connection: Connection, end: BinlogEnd) -> str:
    """Return the transactions that every later MySQL snapshot sees and that are before a position in the binary log, as
    a set of GTIDs.

    The server reports the set only as of now, so the transactions that it logged after the position are subtracted.
    """
    seen = executed_gtids(connection)
    behind: list[str] = []
    names = [name for name, _ in files(connection)]
    for name in names[names.index(end.file) :]:
        pos = end.pos if name == end.file else _FIRST_POS
        while events := _events(connection, name, pos, _LISTED_AT_ONCE):
            gtids = (_GTID_NEXT.search(e.info) for e in events if e.sort in ("Gtid", "Gtid_tagged"))
            behind += [f"{found[1]}:{found[2]}" for found in gtids if found]
            pos = events[-1].end
    return "".join(str(query_row(connection, f"SELECT GTID_SUBTRACT('{seen}', '{','.join(behind)}')")[0]).split())


def owned_gtids(connection: Connection) -> str:
    """Return the GTIDs of transactions that MySQL is committing, each with its thread: `uuid:7#12:8#13,…`."""
    return str(query_row(connection, "SELECT @@GLOBAL.gtid_owned")[0])


def has_gtids(connection: Connection, flavor: Flavor) -> bool:
    """Whether every transaction has a GTID. MariaDB's always do."""
    return flavor == "mariadb" or str(query_row(connection, "SELECT @@GLOBAL.gtid_mode")[0]) == "ON"


def gtids_at(connection: Connection, file: BinlogFile, pos: int) -> str | None:
    """Return the last GTIDs before a position in MariaDB's binary log.

    None if the log has no such position, or if an event before it in that file is larger than `max_allowed_packet`:
    then the server's function fails.
    """
    text = query_row(connection, f"SELECT BINLOG_GTID_POS('{_plain(file)}', {pos})")[0]
    return None if text is None else str(text)


def gtids_before_file(connection: Connection, file: BinlogFile) -> str:
    """Return the GTIDs before a file, as its first events contain them: MySQL's set; MariaDB's last one of each domain
    and server."""
    for event in _events(connection, file, _FIRST_POS, _FIRST_EVENTS):
        if event.sort in ("Previous_gtids", "Gtid_list"):
            return "".join(event.info.split()).strip("[]")
    return ""


_FIRST_EVENTS = 4
"""Among this many first events of a file are its format, MariaDB's encryption, and the list of the GTIDs before it."""
_OPENING = frozenset(("Gtid", "Gtid_tagged", "Anonymous_Gtid"))
_PASSED = frozenset(("Previous_gtids", "Format_desc", "Gtid_list", "Binlog_checkpoint", "Start_encryption"))
"""Events between transactions; more transactions of the same file may follow them. MariaDB writes a checkpoint whenever
its engine has made an older file durable, also after the last transaction that cdcflow has read."""
_ENDING = frozenset(("Rotate", "Stop"))
_PASSED_MAX = 1000
_GTID_NEXT = re.compile(r"GTID_NEXT\s*=\s*'([0-9a-fA-F-]{36}(?::[a-z_]\w*)?):(\d+)'")
_MARIADB_GTID = re.compile(r"GTID (\d+)-\d+-(\d+)")
_WRONG_OFFSET = 1220
_FIRST_POS = 4  # after the magic number
_LISTED_AT_ONCE = 10_000


def next_gtid(connection: Connection, position: BinlogPosition) -> tuple[str, int] | None:
    """Return the GTID of the transaction that begins at a position of MySQL's log; None if the log has none yet.

    Raises:
        ValueError: no transaction begins or ends there.
    """
    found = _following(connection, position)
    gtid = None if found is None else _GTID_NEXT.search(found)
    return (gtid[1].lower(), int(gtid[2])) if gtid else None


def _following(connection: Connection, position: BinlogPosition) -> str | None:
    """Return the server's description of the event that opens the transaction at a position; None if the log has none
    yet.

    Reads one event at a time, so that a large event that follows is not read. Raises ValueError as `next_gtid` does.
    """
    pos = position.pos
    for _ in range(_PASSED_MAX):
        try:
            events = _events(connection, position.file, pos, 1)
        except pymysql.Error as error:
            if error.args and error.args[0] == _WRONG_OFFSET:
                raise ValueError from None
            raise
        if not events or events[0].sort in _ENDING:
            return None
        if events[0].sort in _OPENING:
            return events[0].info
        if events[0].sort not in _PASSED:
            raise ValueError
        pos = events[0].end
    return None


def check_between(connection: Connection, position: BinlogPosition) -> None:
    """Raise ValueError if no transaction begins or ends at this position."""
    _following(connection, position)


def quiet_end(connection: Connection) -> tuple[BinlogEnd, str] | None:
    """Return the end of MariaDB's binary log with the last GTIDs before it; None if it moved during the query."""
    before, gtids, after = at_once(
        connection, "SHOW MASTER STATUS", "SELECT @@GLOBAL.gtid_binlog_pos", "SHOW MASTER STATUS"
    )
    file, pos, *_ = before[0]
    return (BinlogEnd(BinlogFile(str(file)), int(pos), ""), str(gtids[0][0])) if before == after else None


def next_of_mariadb(connection: Connection, position: BinlogPosition) -> tuple[int, int] | None:
    """Return domain and number of the transaction that begins at a position of MariaDB's log; None if the log has none
    yet.

    Raises:
        ValueError: no transaction begins or ends there.
    """
    found = _following(connection, position)
    gtid = None if found is None else _MARIADB_GTID.search(found)
    return (int(gtid[1]), int(gtid[2])) if gtid else None


def state(connection: Connection) -> str:
    """Return the last GTID of each domain and server that MariaDB's binary log has ever contained."""
    return str(query_row(connection, "SELECT @@GLOBAL.gtid_binlog_state")[0])


def server_of(connection: Connection, flavor: Flavor) -> str:
    """Return the server's identity: MySQL's uuid. MariaDB has none; its `server_id` is unique among replicating
    servers."""
    if flavor == "mysql":
        return str(query_row(connection, "SELECT @@GLOBAL.server_uuid")[0])
    return str(query_row(connection, "SELECT @@GLOBAL.server_id")[0])


def bytes_behind(files: list[tuple[BinlogFile, int]], position: BinlogPosition) -> int | None:
    """Return the number of bytes of these files after a position; None if its file is not among them."""
    names = [name for name, _ in files]
    if position.file not in names:
        return None
    at = names.index(position.file)
    return sum(size for _, size in files[at:]) - min(position.pos, files[at][1])


def _plain(file: BinlogFile) -> str:
    if not file.name.replace(".", "").replace("-", "").replace("_", "").isalnum():
        raise ConfigurationError(
            f"the binary log's file is called {file.name!r}, a name that cdcflow does not use in SQL",
            runbook="binlog-unknown",
        )
    return file.name
