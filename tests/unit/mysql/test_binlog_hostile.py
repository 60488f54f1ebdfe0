"""Garbled and hostile bytes: a precise error, never a read past the end, never an endless loop (hard case O10)."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.mysql.binlog_bytes import MARKS_TABLE, Log, image, packet, simple
from tests.support.mysql.binlog_decoder import FLAVORS, reader

from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.mysql import wire
from cdcflow.sources.mysql.events import query_of
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.statements import statement_of
from cdcflow.sources.mysql.tables import table_map

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def story(flavor: Flavor, compress: bool) -> Log:
    log = Log(flavor, checksum=False, compress=compress)
    log.begin()
    log.insert(simple("t"), (1, "a"), (2, None))
    log.update(simple("wide", extra=["w"]), (1, "a", "b"), (2, None, "c"))
    log.rows("d", simple("t"), image(simple("t"), (1, "a")), extra=b"\1\2\3")
    log.insert(MARKS_TABLE, ("me", "token", "now"))
    log.query("SAVEPOINT s")
    log.commit()
    log.standalone("TRUNCATE t")
    log.gtid(flags=64)
    log.query("XA START X'61',X'',1", "")
    log.insert(simple("t"), (3, "c"))
    log.xa_prepare(b"a")
    if flavor == "mysql":
        log.tagged_gtid("tag", 3)
        log.query("CREATE TABLE x (id int)")
    log.rotate()
    log.standalone("XA COMMIT X'61',X'',1")
    return log


@EXAMPLES
@given(flavor=st.sampled_from(FLAVORS), compress=st.booleans(), seed=st.integers(0, 2**32))
def test_garbled_events_end_in_named_errors(flavor: Flavor, compress: bool, seed: int) -> None:
    """Bytes are changed inside of events whose frame stays right, so that every parser gets to see some."""
    chance = random.Random(seed)
    log = story(flavor, compress)
    found = reader(log, spool_bytes_max=chance.choice([0, 1 << 20]))
    events = [e for name in sorted(log.files) for _, e in log.files[name]]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(events))
        event = bytearray(events[at])
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(event))
            if 9 <= place < 13:
                continue
            event[place] = chance.choice([0, 1, 0x7F, 0xFA, 0xFB, 0xFC, 0xFE, 0xFF, chance.randrange(256)])
        if chance.random() < 0.4:
            event = event[: chance.randint(19, len(event))]
            event[9:13] = struct.pack("<I", len(event))
        events[at] = bytes(event)
    with contextlib.suppress(CdcflowError):
        found.feed(b"".join(packet(e) for e in events), [chance.randint(1, 300) for _ in range(8)])
    found.decoder.close()


@EXAMPLES
@given(data=st.binary(max_size=200), checksum=st.booleans(), begin=st.integers(0, 20))
def test_packets_of_any_bytes_are_cut_within_their_data(data: bytes, checksum: bool, begin: int) -> None:
    """What a compiled form must hold, too: places inside the data, and the same reason for stopping."""
    begin = min(begin, len(data))
    found = wire.split(data + bytes(PAD), begin, len(data), checksum)
    assert begin <= found.reached <= len(data)
    assert ((found.start >= begin) & (found.end >= found.start) & (found.end <= len(data))).all()
    assert len(found.start) == len(found.end) == len(found.type)


@pytest.mark.parametrize("size", [5, 100, 0xFFFFFE, 0xFFFFFF, 0x1000000, 3 * 0xFFFFFF])
def test_needed_bytes_are_those_of_the_first_event(size: int) -> None:
    """The buffer grows to them and no further (M28)."""
    event = struct.pack("<IBIIIH", 0, 16, 1, 19 + size, 0, 0) + bytes(size)
    whole = packet(event)
    assert wire.bytes_needed(whole, len(whole)) == len(whole)
    assert wire.bytes_needed(whole, 24) == len(whole)
    assert wire.bytes_needed(whole, 3) <= len(whole)
    longer = wire.long_event(whole + b"x", 0, len(whole) + 1)
    assert longer == (event, len(whole)) or size < 0xFFFFFE
    assert wire.long_event(whole, 0, len(whole) - 1) is None


@given(
    said=st.text(max_size=60),
    word=st.sampled_from(["", "RENAME TABLE ", "ALTER TABLE ", "XA COMMIT X'", "DROP TABLE "]),
)
@example(said="0'", word="XA COMMIT X'")
def test_any_statement_is_understood_somehow(said: str, word: str) -> None:
    """M35: no statement that a client types may end the stream by an accident in its reader."""
    raw = (word + said).encode(errors="replace")
    event = bytes(4) + b"\2" + bytes(14) + struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0" + raw
    statement_of(query_of(event))


@given(raw=st.binary(max_size=120))
def test_table_map_of_any_bytes(raw: bytes) -> None:
    """Lengths in it lead anywhere."""
    with contextlib.suppress(CdcflowError):
        table_map(bytes(4) + b"\x13" + bytes(14 + 8) + raw)


def test_a_wrong_checksum_is_not_a_matter_of_types() -> None:
    """Each event's own checksum is compared, and reading resumes after the last good one."""
    log = Log()
    for i in range(3):
        log.begin()
        log.insert(simple("t"), (i, "a"))
        log.commit()
    events = [e for _, e in log.files[log.file]]
    for at in range(2, len(events)):
        bad = [*events[:at], events[at][:-1] + bytes([events[at][-1] ^ 1]), *events[at + 1 :]]
        found = reader(log)
        with pytest.raises(SourceUnavailable, match="does not fit its checksum"):
            found.feed(b"".join(packet(e) for e in bad))
    assert zlib.crc32(events[2][:-4]) == int(np.frombuffer(events[2][-4:], "<u4")[0])
