"""The second opinion: which row events it gets, that it finds what is planted, and what it is known to get wrong."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pymysqlreplication.constants.CHARSET import charset_by_id
from pymysqlreplication.row_event import RowsEvent, find_charset
from tests.support.mysql.binlog_bytes import LONG, VARCHAR, Log, TestColumn, TestTable, simple
from tests.support.mysql.binlog_corpus import read
from tests.support.mysql.binlog_decoder import FLAVORS, TestTables, reader
from tests.support.mysql.second_opinions import AllSamples, differences

from cdcflow.capture.ports.source import SecondOpinion
from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.mysql import doctor, event_samples, mysql_replication, opinion_exclusions
from cdcflow.sources.mysql.event_samples import EventSamples
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.opinion_exclusions import EXCLUSIONS, OTHER_CHARSETS, UNREADABLE, can_read
from cdcflow.sources.mysql.second_opinion import compare
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.sources.mysql.tables import DescribedTable, TableMap, describe
from cdcflow.sources.mysql.types.charsets import Charset, charset_of, decode_text
from cdcflow.sources.mysql.types.columns import Policy, TypeCode

T, U = simple("t"), simple("u")
RECORDED = sorted((Path(__file__).parents[2] / "corpus" / "mysql").glob("*.txt"))


def sampled(log: Log, tables: TestTables | None = None) -> AllSamples:
    """All row events of a log that the library can read."""
    samples = AllSamples()
    reader(log, tables=tables, samples=samples).feed(log.dump())
    return samples


# ── comparing ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_recorded_logs_are_decoded_alike(path: Path, compiled: bool) -> None:
    """M01, M02, M08, M45: partial images, compressed events, XA transactions, spooled or not."""
    recording = read(path.read_text())
    for spool_bytes_max in (1 << 30, 0):
        samples = AllSamples()
        found = reader(
            recording.flavor,
            f"{next(iter(recording.files))}:4;",
            samples=samples,
            compiled=compiled,
            spool_bytes_max=spool_bytes_max,
        )
        found.feed(recording.dump())
        assert samples.kept
        assert differences(samples, recording.flavor) == []


def history(flavor: Flavor) -> AllSamples:
    log = Log(flavor)
    log.begin()
    log.insert(T, (1, "a"), (2, None), (3, "c"))
    log.update(T, (1, "a"), (1, "b"))
    log.update(T, (2, None), (20, "x"))
    log.delete(T, (3, "c"))
    log.commit()
    return sampled(log)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_every_kind_of_event_is_compared(flavor: Flavor) -> None:
    """An update whose key changes consists of two changes of one row."""
    samples = history(flavor)
    assert [s.rows["_op"].to_pylist() for s in samples.kept] == [["c"] * 3, ["u"], ["d", "c"], ["d"]]
    assert differences(samples, flavor) == []


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("at", range(4))
def test_a_wrong_value_anywhere_in_an_event_is_found(flavor: Flavor, at: int) -> None:
    """The last row of an event counts as much as the first, and a column is named, never a value."""
    sample = history(flavor).kept[at]
    for row in range(sample.rows.num_rows):
        values = sample.rows["v"].to_pylist()
        values[row] = "secret" if values[row] != "secret" else None
        rows = sample.rows.set_column(1, "v", pa.array(values, pa.string()))
        found = compare(replace(sample, rows=rows), flavor)
        assert (found.columns, found.failure) == (("v",), "")
        assert "secret" not in repr(found)
        assert found.position.startswith("binlog.000001:")


@pytest.mark.parametrize("flavor", FLAVORS)
def test_missing_doubled_and_renamed_changes_are_found(flavor: Flavor) -> None:
    """One row more or less, or an insert for an update, is not a difference of any column."""
    for sample in history(flavor).kept:
        fewer = sample.rows.slice(0, sample.rows.num_rows - 1)
        doubled = pa.Table.from_batches([sample.rows, sample.rows]).combine_chunks().to_batches()[0]
        other = sample.rows.set_column(
            2, "_op", pa.array(["u" if o == "d" else "d" for o in sample.rows["_op"].to_pylist()])
        )
        for rows in (fewer, doubled, other):
            assert compare(replace(sample, rows=rows), flavor).failure == "has other rows by it"
        # Of an event with many changes only the first ones are shown.
        assert compare(replace(sample, rows=fewer, is_whole=False), flavor).is_equal


@pytest.mark.parametrize("flavor", FLAVORS)
def test_wrongly_cut_bytes_are_a_difference(flavor: Flavor) -> None:
    """The library fails at them or reads other values, and its exception's text may contain values."""
    sample = history(flavor).kept[0]
    found = [compare(replace(sample, event=sample.event[:-cut]), flavor) for cut in range(1, 12)]
    assert not any(one.is_equal for one in found)
    assert "cannot be decoded by it (" in " ".join(one.failure for one in found)


# ── which events are kept ──────────────────────────────────────────────────────────────────────────────────────


def offering(samples: EventSamples, *tables: TestTable) -> None:
    """A log in which rows of these tables change, one after the other."""
    log = Log()
    for number, table in enumerate(tables):
        log.begin()
        log.insert(table, (number, "x"), (-number - 1, "y"))
        log.commit()
    reader(log, samples=samples).feed(log.dump())


def test_a_quiet_table_has_its_turn_next_to_a_busy_one() -> None:
    """Otherwise its types would never be compared."""
    samples = EventSamples(can_read)
    samples.wanted = True
    seen = []
    for tables in ([T] * 9, [T, U, *[T] * 9], [*[T] * 9, U], [T] * 3):
        offering(samples, *tables)
        taken = samples.take()
        assert taken is not None
        seen.append(taken.described.table.id.name)
    assert seen == ["t", "u", "t", "t"]
    assert samples.take() is None


def test_only_requested_and_readable_second_opinions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path pays nothing for what is switched off, and memory has a bound."""
    samples = EventSamples(lambda described: described.table.id.name != "u")
    offering(samples, T)
    assert samples.take() is None
    samples.wanted = True
    offering(samples, U)
    assert samples.take() is None
    monkeypatch.setattr(event_samples, "EVENT_BYTES_MAX", 20)
    offering(samples, T)
    assert samples.take() is None


def test_of_an_event_with_many_rows_the_first_ones_are_compared() -> None:
    """A row event may be large, and each of its rows becomes Python objects."""
    log = Log()
    log.begin()
    log.insert(T, *((number, "x") for number in range(event_samples.CHANGES_MAX + 5)))
    log.commit()
    [sample] = sampled(log).kept
    assert (sample.rows.num_rows, sample.is_whole) == (event_samples.CHANGES_MAX, False)
    assert compare(sample, "mysql").is_equal


def test_without_the_library_nothing_is_kept_and_the_status_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shadow check continues with reads by key alone."""
    settings = MySQL.model_validate({"kind": "mysql", "url": "mysql://root@127.0.0.1:1/", "tables": ["x.*"]})
    source = MySQLSource(settings, lambda: None)
    assert isinstance(source, SecondOpinion)
    monkeypatch.setattr(mysql_replication, "is_installed", lambda: False)
    source.sample_events(wanted=True)
    assert not source._samples.wanted
    assert source.compare_event() is None
    assert source._is_opinion_missing
    assert "pip install 'cdcflow[second-opinion]'" in doctor.second_decoder().text
    monkeypatch.undo()
    assert "is installed" in doctor.second_decoder().text
    source.sample_events(wanted=True)
    assert source._samples.wanted
    assert not source._is_opinion_missing


# ── what it is known to get wrong ──────────────────────────────────────────────────────────────────────────────


NO_PAD = [n for n in range(1024, 2048) if charset_by_id(str(n), "mariadb") is not None]
"""MariaDB's collations that do not pad: two a character set."""


def charsets() -> dict[Charset, set[str]]:
    """The character sets of all collations, each with what the library decodes its text by."""
    found: dict[Charset, set[str]] = {}
    numbers = [("mysql", n) for n in range(1, 1024)] + [
        ("mariadb", n) for n in (*range(1, 1024), *NO_PAD, *range(2048, 4096))
    ]
    for flavor, collation in numbers:
        with contextlib.suppress(ConfigurationError):
            encoding = RowsEvent.charset_to_encoding(find_charset(str(collation), flavor)[0])
            found.setdefault(charset_of(collation), set()).add(encoding)
    return found


def is_other(charset: Charset, encoding: str) -> bool:
    """Whether the library decodes a code of this character set to something else than the servers do."""
    numbers: list[tuple[int, ...]] = [(first,) for first in range(256)]
    numbers += product(range(256), repeat=2) if charset.bytes_max > 1 else []
    for code in map(bytes, [*numbers, (0, 0, 0, 0xE9)]):
        try:
            expected = decode_text(charset.name, code)
            if code.decode(encoding, "ignore") != expected:
                return True
        except UnicodeDecodeError:
            continue  # no code of the character set
        except LookupError:
            return True
    return False


def test_the_other_character_sets_are_those_in_which_a_code_differs() -> None:
    """Text in all others is compared; a release of the library that decodes one of these right shows here."""
    other = {c.name for c, encodings in charsets().items() if any(is_other(c, e) for e in encodings)}
    assert other - {"binary", "latin1"} == OTHER_CHARSETS


class Replacing(TestTables):
    """Text that is none in its character set becomes U+FFFD."""

    def describe(self, found: TableMap) -> DescribedTable | None:
        return describe(found.id, found.columns, found.key_names, Identity.KEY, Policy(bad_text="replace"))


def with_column(code: int, metadata: bytes) -> TestTable:
    last = TestColumn("last", VARCHAR, struct.pack("<H", 80))
    columns = (TestColumn("id", LONG, nullable=False), TestColumn("v", code, metadata), last)
    return TestTable(TableId("shop", "t"), columns)


def opaque(code: int, data: bytes) -> bytes:
    """A JSON column's cell: one value of a type that JSON does not have."""
    document = bytes([15, code, len(data)]) + data
    return struct.pack("<I", len(document)) + document


def packed_time(hour: int) -> bytes:
    return struct.pack("<q", (hour << 12 | 34 << 6 | 56) << 24 | 789)


JSON = with_column(245, b"\4")
VALUES: dict[str, tuple[Flavor, TestTable, bytes]] = {
    "`timestamp` at or after 2038": ("mariadb", with_column(17, b"\0"), b"\x80\0\0\0"),
    "text with bytes": ("mysql", with_column(VARCHAR, struct.pack("<H", 80)), b"\x03a\xffb"),
    "`json` of MySQL": ("mysql", JSON, opaque(11, packed_time(25))),
}
UNKNOWN_TYPES: dict[str, tuple[Flavor, TestTable, bytes]] = {
    "VECTOR": ("mysql", with_column(242, b"\x04"), b"\4\0\0\0\0\0\x80\x3f"),
    "VARCHAR_COMPRESSED": ("mariadb", with_column(141, struct.pack("<H", 80)), b"\4\0abc"),
    "BLOB_COMPRESSED": ("mariadb", with_column(140, b"\2"), b"\4\0\0abc"),
}


def one_row(flavor: Flavor, table: TestTable, cell: bytes) -> AllSamples:
    log = Log(flavor)
    log.begin()
    log.rows("i", table, b"\0" + struct.pack("<i", 1) + cell + b"\1z")
    log.commit()
    return sampled(log, Replacing())


@pytest.mark.parametrize("excluded", VALUES)
def test_each_exclusion_is_needed(excluded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only some servers write, or none by itself; the others are tried on real servers."""
    flavor, table, cell = VALUES[excluded]
    samples = one_row(flavor, table, cell)
    assert differences(samples, flavor) == []
    left = tuple(one for one in EXCLUSIONS if not one.about.startswith(excluded))
    assert len(left) == len(EXCLUSIONS) - 1
    monkeypatch.setattr(opinion_exclusions, "EXCLUSIONS", left)
    assert [found.columns for found in differences(samples, flavor)] == [("v",)]


@pytest.mark.parametrize(
    "cell",
    [
        opaque(11, packed_time(23)),
        opaque(12, struct.pack("<q", ((2026 * 13 + 2) << 22 | 3 << 17 | 4 << 12) << 24)),
        opaque(246, bytes([4, 2]) + b"\x8c\x22"),
        opaque(252, b"\0\xff"),
    ],
    ids=["time", "datetime", "decimal", "bytes"],
)
def test_documents_with_values_that_json_does_not_have_are_no_difference(cell: bytes) -> None:
    """MySQL keeps their types, and a text does not show them; a number is compared."""
    samples = one_row("mysql", JSON, cell)
    assert len(samples.kept) == 1
    assert differences(samples, "mysql") == []


@pytest.mark.parametrize("name", UNKNOWN_TYPES)
def test_rows_with_a_type_that_the_library_does_not_support_are_skipped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot locate the columns after such a column."""
    flavor, table, cell = UNKNOWN_TYPES[name]
    assert one_row(flavor, table, cell).kept == []
    monkeypatch.delitem(opinion_exclusions.UNREADABLE, TypeCode[name])
    samples = one_row(flavor, table, cell)
    assert len(samples.kept) == 1
    assert len(differences(samples, flavor)) == 1


def test_all_exclusions_are_on_the_page_and_in_a_test() -> None:
    """The list is for operators: what has no second opinion, they should be able to read."""
    page = (Path(__file__).parents[3] / "docs" / "verify.md").read_text()
    assert [one.about for one in EXCLUSIONS if f"| {one.about} | {one.fault} |" not in page] == []
    assert [text for text in UNREADABLE.values() if text not in page] == []
