"""Looking into a log from outside: what is found, in which order, and where a search ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cdcflow
from cdcflow import wiring
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.http import explorer as module
from cdcflow.http.explorer import Explorer
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import UNCHANGED
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 1 to 3 and 4 to 7 sealed, 8 to 10 in the journal: order 2 is inserted, updated, moved to 22, deleted."""
    log = FileLog.open(tmp_path_factory.mktemp("explorer") / "log", IDENTITY)
    writer = Writer.of(log)
    writer.put(orders(1, 2, xid=1), transactions([2], [1], changes(PRODUCTS, [{"id": 3, "picture": b"\0\xff"}])))
    log.roll()
    writer.put(
        transactions([3], [1], changes(ORDERS, [{"id": 2, "note": "<b>new</b>", "_op": "u"}])),
        transactions(
            [4],
            [2],
            changes(
                ORDERS,
                [{"id": 2, "_op": "d"}, {"id": 22, "note": "was 2", "_op": "c", "_before": {"id": 2, "note": "new"}}],
            ),
        ),
        transactions([5], [1], changes(ORDERS_WIDER, [{"id": 1, "_op": "u", UNCHANGED: ["note"]}])),
    )
    log.roll()
    log.seal_pending()
    writer.put(transactions([6, 7], [1, 3], changes(ORDERS, [{"id": 22, "_op": "d"}, {"id": 5}, {"id": 6}])))
    return log.path


@pytest.fixture
def explorer(path: Path) -> Explorer:
    return Explorer(lambda: FolderReader(path))


def found(explorer: Explorer, table: str | None = "shop.orders", **asked: object) -> list[tuple[int, str]]:
    answer = explorer.changes(table, **asked)  # type: ignore[arg-type]  # what the test gives
    return [(change["offset"], change["op"]) for change in answer["changes"]]


def test_last_changes_are_read_latest_first_from_journal_and_segments(explorer: Explorer) -> None:
    """The latest changes are in no segment yet, and are the ones that an operator searches for."""
    assert found(explorer) == [
        (10, "c"),
        (9, "c"),
        (8, "d"),
        (7, "u"),
        (6, "c"),
        (5, "d"),
        (4, "u"),
        (2, "c"),
        (1, "c"),
    ]
    assert found(explorer, limit=2) == [(10, "c"), (9, "c")]
    assert [offset for offset, _ in found(explorer, None)] == list(range(10, 0, -1))


def test_search_continues_where_the_answer_specifies(explorer: Explorer) -> None:
    """Page after page: no change appears twice, or is missing."""
    seen: list[int] = []
    before: int | None = None
    for _ in range(10):
        answer = explorer.changes("shop.orders", limit=2, before=before)
        seen += [change["offset"] for change in answer["changes"]]
        if not answer["more"]:
            break
        before = answer["looked_back_to"]
    assert seen == [10, 9, 8, 7, 6, 5, 4, 2, 1]


def test_history_of_a_key_has_what_happened_to_it(explorer: Explorer) -> None:
    """A row whose key was changed is found by the old key and by the new one."""
    assert found(explorer, key=["2"]) == [(6, "c"), (5, "d"), (4, "u"), (2, "c")]
    assert found(explorer, key=["22"]) == [(8, "d"), (6, "c")]
    assert found(explorer, key=["99"]) == []


def test_values_are_shown_only_where_they_are_requested(explorer: Explorer) -> None:
    """S03: a reader who checks which tables change need not see the values."""
    assert "new" not in str(explorer.changes("shop.orders"))
    (change,) = explorer.changes("shop.orders", values=True, before=5, limit=1)["changes"]
    assert (change["values"]["id"], change["values"]["note"]) == ("2", "<b>new</b>")
    (moved,) = explorer.changes("shop.orders", values=True, before=7, limit=1)["changes"]
    assert moved["before"] == {"id": "2"}


def test_unchanged_absent_and_null_are_distinguished(explorer: Explorer) -> None:
    """Three things that appear alike in a table: not sent, absent for a deleted row, and NULL."""
    partial, moved, deleted = explorer.changes("shop.orders", values=True, before=8, limit=3)["changes"]
    assert partial["unchanged"] == ["note"]
    assert "note" not in partial["values"]
    assert partial["values"]["due"] is None
    assert set(deleted["values"]) == {"id"}
    assert moved["values"]["note"] == "was 2"


def test_bytes_are_shown_as_digits(explorer: Explorer) -> None:
    """JSON has no bytes, and a page must not guess their encoding."""
    (change,) = explorer.changes(str(PRODUCTS.id), values=True)["changes"]
    assert change["values"]["picture"] == "\\x00ff"


def test_transaction_is_shown_whole(explorer: Explorer) -> None:
    """All of its rows, also those of other tables, in their order, with where the source has it."""
    shown = explorer.transaction(4, values=True)
    assert [(c["offset"], c["op"]) for c in shown["changes"]] == [(5, "d"), (6, "c")]
    assert (shown["rows"], shown["truncated"], shown["xid"]) == (2, False, "4")
    for number in range(1, 8):
        assert {c["transaction"] for c in explorer.transaction(number)["changes"]} == {number}
    with pytest.raises(ConfigurationError, match="no transaction 99"):
        explorer.transaction(99)


def test_large_transaction_is_cut_off_and_reported_as_such(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of a million rows must not become one answer."""
    monkeypatch.setattr(module, "ROWS_MAX", 1)
    shown = explorer.transaction(4)
    assert (len(shown["changes"]), shown["rows"], shown["truncated"]) == (1, 2, True)


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("shop.unknown", [], "no table shop.unknown; it has: shop.orders, "),
        ("shop.orders", ["1", "2"], "has 1 columns, not 2"),
        ("shop.orders", ["s3cr3t"], "the text given for id is not a int"),
        (None, ["1"], "looking for a key: no table is named"),
    ],
)
def test_malformed_query_is_answered_with_a_valid_form(
    explorer: Explorer, table: str | None, key: list[str], said: str
) -> None:
    """S03: the answer repeats no value."""
    with pytest.raises(ConfigurationError, match=said) as refused:
        explorer.changes(table, key=key)
    assert "s3cr3t" not in str(refused.value)


def test_search_without_time_stops_and_reports_where(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is nowhere in a log of years must not keep the daemon's processors busy."""
    monkeypatch.setattr(module, "FIRST_STRETCH", 4)
    ticks = iter(range(0, 10_000, 2))
    answer = Explorer(lambda: FolderReader(path), clock=lambda: float(next(ticks))).changes("shop.orders", key=["99"])
    assert (answer["changes"], answer["looked_back_to"], answer["more"]) == ([], 7, True)


def test_only_one_question_is_answered_at_a_time(path: Path) -> None:
    """Ten readers who search must not use up the capture's processors; all but one get an error that asks them to
    retry."""
    inner: list[SinkUnavailable] = []

    def reader() -> FolderReader:
        try:
            asked.changes(None)
        except SinkUnavailable as error:
            inner.append(error)
        return FolderReader(path)

    asked = Explorer(reader)
    assert asked.changes(None)["changes"]
    assert [error.remedy for error in inner] == ["try again in a few seconds"]
    assert asked.changes(None)["changes"]


def test_log_whose_beginning_has_expired_is_shown_from_there(path: Path, tmp_path: Path) -> None:
    """After an expiry the answer ends where the log begins, instead of with an error."""
    import shutil

    from cdcflow.log.files.layout import Layout

    copy = Layout(shutil.copytree(path, tmp_path / "copy"))
    for lock in copy.root.glob("*.lock"):
        lock.unlink()
    LogRetention(copy, grace_s=0).expire(ExpiryRule(before_cut=2))
    explorer = Explorer(lambda: FolderReader(copy))
    answer = explorer.changes("shop.orders")
    assert [c["offset"] for c in answer["changes"]] == [10, 9, 8, 7, 6, 5, 4]
    assert answer["more"] is False
    assert explorer.transaction(3)["rows"] == 1
    with pytest.raises(ConfigurationError, match="may have expired"):
        explorer.transaction(1)


def test_missing_log_is_no_fault(tmp_path: Path) -> None:
    """The page is open before the first capture has begun."""
    ask: Callable[[], object] = lambda: Explorer(lambda: FolderReader(tmp_path / "none")).changes(None)  # noqa: E731
    with pytest.raises(ConfigurationError, match="no change log"):
        ask()


def test_row_at_a_point_in_time_is_shown_as_texts_and_the_files_read_are_limited(path: Path) -> None:
    """The page and programs ask for one row; a log without an index must not keep the capture's processors."""
    explorer = Explorer(lambda: FolderReader(path), asked=lambda: cdcflow.open(path))
    last = found(explorer)[0][0]
    there = explorer.row("shop.orders", ["1"])
    assert (there["state"], there["values"]["id"], there["offset"]) == ("there", "1", last)
    assert explorer.row("shop.orders", ["22"])["state"] == "deleted"
    assert explorer.row("shop.orders", ["22"], as_of=str(last - 3))["values"] is not None
    few = Explorer(lambda: FolderReader(path), asked=lambda: wiring.open_for_queries(path, files_max=0))
    with pytest.raises(SinkUnavailable, match=r"(?s)more than 0 files would be read.*cdcflow log index"):
        few.row("shop.orders", ["7"])
    Indexing(Layout(path)).step()
    assert few.row("shop.orders", ["7"])["values"] is None
    with pytest.raises(ConfigurationError, match="does not answer"):
        Explorer(lambda: FolderReader(path)).row("shop.orders", ["1"])


def test_history_and_differences_of_rows_are_shown_as_texts(path: Path) -> None:
    explorer = Explorer(lambda: FolderReader(path), asked=lambda: cdcflow.open(path))
    told = explorer.row_history("shop.orders", ["2"])
    assert [(c["op"], c["values"]["id"]) for c in told["changes"]] == [("c", "22"), ("d", "2"), ("u", "2"), ("c", "2")]
    assert told["changes"][0]["before"] == {"id": "2"}
    newest = explorer.row_history("shop.orders", ["2"], limit=1)
    assert newest["more"]
    rest = explorer.row_history("shop.orders", ["2"], before=newest["back_to"])
    assert [*newest["changes"], *rest["changes"]] == told["changes"]
    last = found(explorer)[0][0]
    rows = {tuple(d["key"]): (d["change"], d["after"]) for d in explorer.differences("shop.orders", "0")["rows"]}
    assert rows[("5",)] == ("added", {"id": "5", "note": None})
    assert ("2",) not in rows
    gone = explorer.differences("shop.orders", str(last - 3), str(last))["rows"]
    assert ("removed", ["22"]) in [(d["change"], d["key"]) for d in gone]
