"""Rows in the table of marks, and tags of GTIDs, that name their transaction: a merge distinguishes purges by them."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import MARKS_TABLE, Log, image
from tests.support.mysql.binlog_decoder import FLAVORS, T, one, reader
from tests.support.postgres.wire import origins

from cdcflow.sources.mysql.gtids import Flavor


def purging(log: Log, slot: str, id_: int) -> None:
    """As the job writes it: the mark is inserted and deleted again."""
    log.begin()
    log.insert(MARKS_TABLE, (slot, "", "now"))
    log.rows("d", MARKS_TABLE, image(MARKS_TABLE, (slot, "", "now"), [0]), before=[0])
    log.insert(T, (id_, "a"))
    log.commit()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("spool_bytes_max", [1 << 30, 0])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_origin_is_the_name_in_the_mark(flavor: Flavor, spool_bytes_max: int, *, compiled: bool) -> None:
    """The mark is in the transaction, before or after the rows, with any image; other transactions have no origin."""
    log = Log(flavor)
    one(log, 1)
    purging(log, "cdcflow.purge archive", 2)
    purging(log, "cdcflow.purge archive/17", 3)
    purging(log, "cdcflow.purge", 4)
    log.mark("e1/1/low")
    log.begin()
    log.insert(T, (5, "a"))
    old, new = ("cdcflow.purge late", "", "then"), ("cdcflow.purge late", "", "now")
    log.rows(
        "u", MARKS_TABLE, image(MARKS_TABLE, old, [0]), image(MARKS_TABLE, new, [2]), before=[0], after=[2]
    )  # binlog_row_image = MINIMAL
    log.commit()
    one(log, 6)
    found = reader(log, spool_bytes_max=spool_bytes_max, compiled=compiled)
    found.feed(log.dump(), [700] if spool_bytes_max == 0 else [])
    assert origins(found.events) == [None, "archive", "archive", "purge", "late", None]


@pytest.mark.parametrize("spool_bytes_max", [1 << 30, 0])
def test_origin_is_the_tag_of_the_gtid_unless_a_mark_has_another(spool_bytes_max: int) -> None:
    """A session can have a tag, with which nothing has to be written, and which a read-only capture sees as well."""
    log = Log()
    one(log, 1)
    for gno, slot in enumerate(["", "cdcflow.purge archive"], 1):
        log.tagged_gtid("nightly", gno)
        log.query("BEGIN", "")
        if slot:
            log.insert(MARKS_TABLE, (slot, "", "now"))
        log.insert(T, (gno + 1, "b"))
        log.commit()
    found = reader(log, spool_bytes_max=spool_bytes_max)
    found.feed(log.dump())
    assert origins(found.events) == [None, "nightly", "archive"]


def test_mark_of_a_prepared_transaction_counts_when_it_is_committed() -> None:
    """M45: the mark arrives with the first half, and others may be committed in between."""
    log = Log()
    log.gtid()
    log.query("XA START X'61',X'',1", "")
    log.insert(MARKS_TABLE, ("cdcflow.purge archive", "", "now"))
    log.insert(T, (1, "a"))
    log.query("XA END X'61',X'',1", "")
    log.xa_prepare(b"a")
    one(log, 2)
    log.gtid()
    log.query("XA COMMIT X'61',X'',1", "")
    found = reader(log)
    found.feed(log.dump())
    assert origins(found.events) == [None, "archive"]


def test_mark_that_was_taken_back_means_nothing() -> None:
    """ROLLBACK TO in a transaction that is too large for memory, whose rows are in the log all the same."""
    log = Log()
    log.begin()
    log.insert(T, (1, "a"))
    log.query("SAVEPOINT `a`", "")
    log.insert(MARKS_TABLE, ("cdcflow.purge archive", "", "now"))
    log.insert(T, (2, "a"))
    log.query("ROLLBACK TO `a`", "")
    log.insert(T, (3, "a"))
    log.commit()
    for spool_bytes_max in (1 << 30, 0):
        found = reader(log, spool_bytes_max=spool_bytes_max)
        found.feed(log.dump(), [500])
        assert origins(found.events) == [None], spool_bytes_max
