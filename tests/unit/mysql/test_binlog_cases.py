"""Events of the binary log: what each may hold, and what must not be skipped."""

from __future__ import annotations

import struct

import pytest
from tests.support.mysql.binlog_bytes import (
    LONG,
    Log,
    TestColumn,
    TestTable,
    image,
    lenenc,
    packet,
    payload,
    simple,
    squeezed,
)
from tests.support.mysql.binlog_decoder import (
    FLAVORS,
    WIDE,
    T,
    U,
    decoded,
    failed,
    ids_of,
    one,
    reader,
    refused,
    rows_of,
)
from tests.support.postgres.wire import advanced, transactions

from cdcflow.capture.interleave.messages import Committed
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated, SourceUnavailable
from cdcflow.model.change import SpooledTransaction
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.dump import Dump
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, coordinate


@pytest.mark.parametrize("flavor", FLAVORS)
def test_event_of_unknown_type_stops_with_an_error_that_names_it(flavor: Flavor) -> None:
    """M01, M02: an unknown event could hold rows; a library that skips it loses them silently."""
    log = Log(flavor)
    log.event(99, b"rows?")
    refused(log, ConfigurationError, "event of type 99")


def test_event_of_unknown_type_in_a_compressed_transaction_stops_too() -> None:
    """M01: the type appears when the transaction is decompressed."""
    log = Log("mysql")
    log.compress = True
    log.begin()
    log.event(99, b"rows?")
    log.commit()
    refused(log, ConfigurationError, "event of type 99")


def test_event_of_the_other_kind_of_server_stops_with_an_error_that_names_it() -> None:
    """A MySQL server writes no MariaDB events; such a number has an unknown meaning there."""
    log = Log("mysql")
    log.event(167, b"x")
    refused(log, ConfigurationError, "event of type 167")


def test_event_that_the_server_flags_as_ignorable_is_skipped() -> None:
    """Newer servers add such events, flagged so that readers may skip them."""
    log = Log("mysql")
    log.begin()
    log.event(99, b"news", flags=0x80)
    log.insert(T, (1, "a"))
    log.commit()
    assert ids_of(decoded(log)) == [1]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_incident_stops(flavor: Flavor) -> None:
    """M03: the server itself reports that changes are missing from its log."""
    log = Log(flavor)
    one(log, 1)
    log.event(26, struct.pack("<HB", 1, 4) + b"lost")
    refused(log, HistoryLost, "INCIDENT")


def test_fragments_of_row_events_stop_with_an_error_that_names_them() -> None:
    """M04: rows in a form that is not read must not be passed over."""
    log = Log("mariadb")
    log.begin()
    log.event(172, struct.pack("<IIB", 2, 1, 0) + b"half a row event")
    log.commit()
    refused(log, ConfigurationError, "PARTIAL_ROW_DATA")


@pytest.mark.parametrize("flavor", FLAVORS)
def test_images_are_decoded_as_each_event_specifies_not_as_the_server_is_set(flavor: Flavor) -> None:
    """M08: one session with binlog_row_image=MINIMAL among others; what it did not send is unchanged, not NULL."""
    log = Log(flavor)
    log.begin()
    log.update(WIDE, (1, "a", "b"), (1, "A", None))
    log.rows("u", WIDE, image(WIDE, (2, None, None), [0]), image(WIDE, (2, "B", None), [1]), before=[0], after=[1])
    log.rows("d", WIDE, image(WIDE, (3, None, None), [0]), before=[0])
    log.commit()
    full, minimal, deleted = rows_of(decoded(log))
    assert full == ("wide", "u", {"id": 1, "v": "A", "w": None})
    assert minimal == ("wide", "u", {"id": 2, "v": "B", "w": None, "_unchanged": ["w"]})
    assert (deleted[1], deleted[2]["id"]) == ("d", 3)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_positions_beyond_4_gib_are_counted_in_64_bits(flavor: Flavor) -> None:
    """M26: one huge transaction makes a file of any length, and the header's place wraps."""
    log = Log(flavor)
    one(log, 1)
    log.pos = (1 << 32) - 200
    one(log, 2)
    one(log, 3)
    log.pos = (1 << 33) - 150
    one(log, 4)
    found = decoded(log)
    assert ids_of(found) == [1, 2, 3, 4]
    coordinates = [xid for xid, _, _ in transactions(found.events)]
    assert coordinates == sorted(coordinates)
    assert coordinates[-1] == coordinate(*log.place).value
    assert (
        BinlogPosition.parse(
            advanced(found.events)[-1] if advanced(found.events) else transactions(found.events)[-1][1]
        ).pos
        == log.pos
        > 1 << 33
    )


@pytest.mark.parametrize("flavor", FLAVORS)
def test_reading_on_beyond_4_gib_begins_with_the_file(flavor: Flavor) -> None:
    """M26: the command has 32 bits for the place; what was delivered before it is skipped, also by a server without
    GTIDs."""
    log = Log(flavor, gtids=False)
    one(log, 1)
    log.pos = (1 << 32) + 50
    one(log, 2)
    position = BinlogPosition(*log.place, gtids="" if flavor == "mysql" else f"0-7-{log.gno}")
    one(log, 3)
    dump = Dump(flavor, position, False, 5, "", 1.0)
    assert dump.start == (BinlogFile(log.file), 4)
    found = reader(log, position.text)
    found.feed(log.dump(*dump.start))
    assert ids_of(found) == [3]


@pytest.mark.parametrize("size", [0xFFFFFF - 120, 0xFFFFFF, 2 * 0xFFFFFF + 5])
def test_event_over_several_packets_is_joined(size: int) -> None:
    """M28: packets end at 16 MiB, events do not."""
    blob = TestTable(TableId("shop", "b"), (TestColumn("id", LONG), TestColumn("b", 252, b"\4")))
    log = Log()
    log.begin()
    data = bytes(size)
    log.rows("i", blob, b"\0" + struct.pack("<iI", 5, size) + data)
    log.commit()
    one(log, 6)
    found = reader(log)
    dump = log.dump()
    found.feed(dump, [1000, len(dump) // 2, 100])
    assert [len(r[2]["b"]) for r in rows_of(found)[:1]] == [size]
    assert ids_of(found) == [5, 6]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_damaged_bytes_are_noticed(flavor: Flavor, checksum: bool) -> None:
    """A flipped bit in a row's value shows in nothing but the checksum; without checksums it cannot be seen."""
    log = Log(flavor, checksum=checksum)
    log.begin()
    log.insert(T, (1, "value to be damaged"))
    log.commit()
    dump = log.dump()
    at = dump.index(b"damaged")
    found = reader(log)
    bad = dump[:at] + b"D" + dump[at + 1 :]
    if checksum:
        with pytest.raises(SourceUnavailable, match="does not fit its checksum"):
            found.feed(bad)
        assert not found.events
    else:
        found.feed(bad)
        assert ids_of(found) == [1]


def test_table_ids_mean_nothing_in_the_next_file() -> None:
    """M13: after a restart of the server the same number is another table."""
    log = Log()
    one(log, 1, table=T)
    log.rotate()
    log.next_table_id = 100
    one(log, 2, table=WIDE)
    assert [(r[0], r[2]["id"]) for r in rows_of(decoded(log))] == [("t", 1), ("wide", 2)]
    log.rotate()
    log.begin()
    log.rows("i", U, image(U, (3, "c")), mapped=False) if U in log.table_ids else log.table_ids.setdefault(U, 101)
    log.rows("i", U, image(U, (3, "c")), mapped=False)
    log.commit()
    refused(log, InvariantViolated, "which the server has not described before them")


def test_same_table_id_with_another_shape() -> None:
    """Nothing in the format forbids it; the last table map before a row event counts, from whichever batch it is."""
    log = Log()
    log.begin()
    for table in (T, WIDE, WIDE, T, T, WIDE):
        log.table_ids[table] = 9
        log.insert(table, (1, "x", "y")[: len(table.columns)])
    log.commit()
    names = ["t", "wide", "wide", "t", "t", "wide"]
    assert [r[0] for r in rows_of(decoded(log))] == names
    for table in (T, WIDE):
        log.table_ids[table] = 9
        one(log, 1, table=table)
    pieces = [len(packet(event)) for _, event in log.files[log.file]]
    found = reader(log)
    found.feed(log.dump(), [len(log.dump()) - sum(pieces), *pieces])
    assert [r[0] for r in rows_of(found)] == [*names, "t", "wide"]


def test_events_that_only_mariadb_writes_are_known() -> None:
    """M64: encryption (a dump is sent decrypted), checkpoints, lists of GTIDs, the statement that precedes its rows."""
    log = Log("mariadb")
    log.event(164, b"\1" + bytes(16))
    log.event(161, struct.pack("<I", 13) + b"binlog.000001")
    log.begin()
    log.event(160, b"INSERT INTO t VALUES (1, 'DELETE FROM t')")
    log.insert(T, (1, "a"))
    log.commit()
    log.event(3, b"")
    log.rotate()
    one(log, 2)
    assert ids_of(decoded(log)) == [1, 2]


def test_row_event_without_rows_that_ends_a_statement_is_passed() -> None:
    """The server may end a statement with a row event of no table."""
    log = Log()
    log.begin()
    log.table_map(T)
    log.rows("i", T, image(T, (1, "a")), end=False, mapped=False)
    log.event(30, struct.pack("<IHHH", 0xFFFFFF, 0, 1, 2) + b"\1\xff")
    log.commit()
    assert ids_of(decoded(log)) == [1]


def test_extra_row_information_is_passed_over() -> None:
    """MySQL writes the partition of each row event there, in any length."""
    log = Log()
    log.begin()
    for extra in (b"", b"\1\0\2\0", b"\0\3\xff"):
        log.rows("i", T, image(T, (len(extra), "a")), extra=extra)
    log.commit()
    assert ids_of(decoded(log)) == [0, 4, 3]


def test_row_event_with_other_columns_than_the_table_map_fails_its_table() -> None:
    """M09: a table that was changed without being logged."""
    log = Log()
    log.begin()
    log.table_map(T)
    log.table_ids[WIDE] = log.table_ids[T]
    log.rows("i", WIDE, image(WIDE, (1, "a", "b")), mapped=False)
    log.commit()
    failed(log, "has 2 columns, but a row event of it in the log has 3.*run `cdcflow backfill shop.t`")


@pytest.mark.parametrize("declared", [50, 1 << 40])
def test_compressed_transaction_grows_no_further_than_its_stated_size(declared: int) -> None:
    """M01: a few bytes can claim to be very many, or be more than they claim."""
    log = Log()
    log.gtid()
    log.event(40, payload(bytes(1_000_000), declared))
    refused(log, SourceUnavailable if declared == 50 else ConfigurationError, "compressed")


def test_compressed_rows_grow_no_further_than_their_stated_size() -> None:
    """M02: the same for each of MariaDB's events."""
    log = Log("mariadb")
    log.begin()
    log.table_map(T)
    squeeze = squeezed(bytes(100_000))
    head = struct.pack("<IHH", log.table_ids[T], 0, 1) + lenenc(2) + b"\3"
    log.event(166, head + squeeze[:1] + (50).to_bytes(squeeze[0] & 7, "big") + squeeze[4:])
    log.commit()
    refused(log, SourceUnavailable, "compressed content")
    other = Log("mariadb", compress=True)
    other.query("x" * 100_000)
    with pytest.raises(ConfigurationError, match="an event of 100000 bytes"):
        reader(other, expanded_bytes_max=1000).feed(other.dump())


def test_large_compressed_transaction_is_spooled_in_pieces() -> None:
    """M01, M44: memory does not depend on a transaction's size, also where it arrives as one event."""
    log = Log(compress=True)
    log.begin()
    wide = simple("wide", extra=["w"])
    for i in range(3000):
        log.insert(wide, *((10 * i + k, "x" * 20, "y" * 190) for k in range(10)))
    log.commit()
    found = decoded(log, spool_bytes_max=100_000)
    [event] = [e for e in found.events if isinstance(e, Committed)]
    assert isinstance(event.run, SpooledTransaction)
    assert event.run.rows == 30_000
    pieces = found.spools.all[event.run.spool].pieces
    assert max(sum(len(b.index) for b in batches) for batches, _ in pieces) < 20_000


def test_other_flavor_is_detected() -> None:
    """A wrong source.kind would decode half of the events and misread the other half."""
    log = Log("mariadb")
    with pytest.raises(ConfigurationError, match=r"set source\.kind"):
        reader("mysql").feed(log.dump())


class OlderLog(Log):
    """A log as MySQL 8.0 writes it: fewer types of events."""

    def format_body(self) -> bytes:
        body = super().format_body()
        return body[:2] + struct.pack("<50s", b"8.0.36-log") + body[52 : 57 + 41] + body[-1:]


def test_log_of_mysql_8_0_is_read() -> None:
    """Its format event lists the types up to 41, and contains the version of the server that wrote it."""
    log = OlderLog("mysql")
    one(log, 1)
    log.begin()
    log.update(T, (1, "a"), (1, "b"))
    log.commit()
    log.rotate()
    one(log, 2)
    assert ids_of(decoded(log)) == [1, 1, 2]
