"""What a plan reports about tables and cost, and what goes beyond the request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.capture.plan import Plan, Rates, Refusal, TablePlan, cost, plan
from cdcflow.capture.ports.source import Preview, TablePreview
from cdcflow.config.changes import SettingChange
from cdcflow.model.log_budget import LogLimit
from cdcflow.model.position import Epoch, Offset
from cdcflow.model.table import TableId

A, B = TableId("shop", "a"), TableId("shop", "b")
DONE = TableProgress("done", 1, Offset(1), incarnation=1)


def planned(preview: TablePreview | None, known: TableProgress | None, **more: object) -> Plan:
    tables = Progress({} if known is None else {A: known})
    found = Preview(() if preview is None else (preview,))
    return plan(found, tables, (), is_running=True, **more)  # type: ignore[arg-type]


def action(preview: TablePreview | None, known: TableProgress | None) -> str:
    (table,) = planned(preview, known).tables
    return table.action


def test_a_table_that_the_log_does_not_know_is_added() -> None:
    """And read, with the server's estimates."""
    (table,) = planned(TablePreview(A, 1, rows=10, bytes=1000), None).tables
    assert (table.action, table.rows, table.bytes) == ("added", 10, 1000)


def test_a_table_that_stays_costs_nothing() -> None:
    """Its estimates are not counted."""
    found = planned(TablePreview(A, 1, rows=10, bytes=1000), DONE)
    assert not found.has_changes
    assert (found.cost.rows, found.cost.seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("preview", "known", "expected"),
    [
        (TablePreview(A, 1), TableProgress("forgotten", 1, Offset(1), incarnation=1), "captured again"),
        (TablePreview(A, 2), DONE, "read again"),
        (TablePreview(A, 1, reread="due: null → clamp"), DONE, "read again"),
        (TablePreview(A, 1, reread="due: null → clamp"), TableProgress("cancelled", 0, Offset(0), 1), "unchanged"),
        (TablePreview(A, 1, reread="due: null → clamp"), TableProgress("failed", 1, Offset(0), 1), "read again"),
        (TablePreview(A, 1, reread="due: null → clamp"), TableProgress("cancelled", 2, Offset(0), 1), "unchanged"),
        (TablePreview(A, 1, retried="due: stop → clamp"), TableProgress("failed", 1, Offset(0), 1), "read again"),
        (TablePreview(A, 1, retried="due: stop → clamp"), DONE, "unchanged"),
        (TablePreview(A, 1), TableProgress("failed", 1, Offset(0), 1), "unchanged"),
        (TablePreview(A, 1, policies="email: no policy → mask"), DONE, "read again"),
        (
            TablePreview(A, 1, policies="email: no policy → mask"),
            TableProgress("cancelled", 0, Offset(0), 1),
            "unchanged",
        ),
        (None, DONE, "left out"),
    ],
)
def test_each_table_is_reported_with_what_happens_to_it(
    preview: TablePreview | None, known: TableProgress, expected: str
) -> None:
    """The daemon decides by the same facts (`Backlog`, `reread`)."""
    assert action(preview, known) == expected


def test_table_that_was_excluded_before_is_not_in_the_plan() -> None:
    """It stays unchanged, and the request did not concern it."""
    assert planned(None, TableProgress("forgotten", 1, Offset(1))).tables == ()


def test_effects_beyond_the_request_are_warned_of() -> None:
    """One column's policy has the whole table read; another type stops the merge of it, unless there is none."""
    again = TablePreview(A, 1, reread="due: stop → as text")
    whole, merge = planned(again, DONE).warnings
    assert "the whole table is read again" in whole
    assert "move the table's folder away" in merge
    assert len(planned(again, DONE, merged=()).warnings) == 1
    assert len(planned(TablePreview(A, 1, reread="due: null → clamp"), DONE, merged=(A,)).warnings) == 1
    left = planned(None, DONE, merged=(A,)).warnings
    assert ["read again" in left[0], "gets no more changes" in left[1]] == [True, True]


def test_server_that_rows_are_read_from_is_named_if_rows_are_read() -> None:
    (warning,) = planned(TablePreview(A, 1), None, rows_from="host standby").warnings
    assert warning == "rows are read from host standby: source.backfill.url"
    assert planned(TablePreview(A, 1), DONE, rows_from="host standby").warnings == ()


def test_a_selected_table_that_cannot_be_captured_is_named() -> None:
    """It is in no log, and who selected it must not believe that it is."""
    found = plan(Preview((), (B,)), Progress({}), (), is_running=True)
    assert not found.has_changes
    assert [B.name in w and "doctor" in w for w in found.warnings] == [True]


def test_a_setting_that_waits_for_a_restart_is_named() -> None:
    """Only while a daemon runs: the next start applies everything."""
    waiting = SettingChange("service.listen", None, "127.0.0.1:1", "restart")
    for is_running, count in ((True, 1), (False, 0)):
        found = plan(Preview(()), Progress({}), [waiting], is_running=is_running)
        assert len(found.warnings) == count


def test_a_refused_setting_is_a_refusal_with_its_remedy() -> None:
    """In addition to those of the source."""
    change = SettingChange("log.path", "log", "other", "refused", "it names another log", "set log.path back")
    found = plan(None, Progress({A: DONE}), [change], [Refusal("no key", "add one")], is_running=True)
    assert [r.remedy for r in found.refused] == ["add one", "set log.path back"]
    assert found.tables == ()


def reading(rows: int | None, size: int | None = 0) -> TablePlan:
    return TablePlan("t", "added", rows=rows, bytes=size)


def test_time_is_that_of_what_was_read_lately() -> None:
    """The source's log grows during that time."""
    found = cost([reading(1000), reading(3000)], Rates(100.0, log_bytes_per_second=5.0))
    assert (found.rows, found.seconds, found.log_bytes) == (4000, 40.0, 200)


def test_a_limit_for_each_table_makes_the_largest_last_longer() -> None:
    """Tables are read side by side under it."""
    assert cost([reading(1000), reading(3000)], Rates(1000.0, rows_per_second_max=100)).seconds == 30.0


def test_unknown_row_count_is_reported_as_unknown() -> None:
    """A table that was never analyzed has no row count, and cdcflow invents no number."""
    found = cost([reading(1000, 5), reading(None, None)], Rates(100.0, log_bytes_per_second=5.0))
    assert (found.rows, found.bytes, found.seconds, found.log_bytes) == (None, None, None, None)
    assert (found.rows_at_least, found.bytes_at_least) == (1000, 5)
    assert cost([reading(1000)], Rates()).seconds is None


def test_plan_of_other_policies_has_what_they_do_not_undo() -> None:
    """Values that are stored already stay, and an operator who masks a column may believe otherwise."""
    found = planned(TablePreview(A, 1, policies="email: no policy → mask"), DONE)
    assert any("rows that are in the log already keep their values" in warning for warning in found.warnings)
    assert found.tables[0].why == "other policies for its columns (email: no policy → mask)"


def test_table_whose_changes_are_missing_is_named_until_it_is_read_again() -> None:
    """And one that will fail with its next changes."""
    gap = Gap(Offset(7), 1, Epoch(1), "binlog.1:5;uuid", "")
    failed = TableProgress("failed", 1, Offset(1), incarnation=1, gap=gap)
    (warning,) = planned(TablePreview(A, 1), failed).warnings
    assert warning == "shop.a: its changes are missing since binlog.1:5, until you run `cdcflow backfill shop.a`"
    assert "missing" not in "".join(planned(TablePreview(A, 1, policies="x: drop → mask"), failed).warnings)
    (warning,) = planned(TablePreview(A, 1, misfit="it has no column x"), DONE).warnings
    assert "fails with its next changes: it has no column x" in warning
    (warning,) = planned(TablePreview(A, 1, refused="it has no key; run ALTER"), DONE).warnings
    assert warning == "shop.a: it fails, because it cannot be captured now: it has no key; run ALTER"
    refused = TableProgress("failed", 1, Offset(1), incarnation=1, gap=replace(gap, by="refused"), reason="no key")
    (warning,) = planned(TablePreview(A, 1, refused="no key"), refused).warnings
    assert warning.endswith("until it can be captured again: no key")


DAY = LogLimit("binlog_expire_logs_seconds", age_s=86_400.0)
SIZE = LogLimit("max_slot_wal_keep_size", bytes=10 << 30)


@pytest.mark.parametrize(
    ("limit", "rates", "said"),
    [
        (DAY, Rates(100_000), "takes about 27.8 h, and the source keeps its log for 24.0 h at most"),
        (DAY, Rates(200_000), ""),
        (DAY, Rates(), "takes longer than that below 115,741 rows a second, and the source keeps its log for 24.0 h"),
        (LogLimit("binlog_expire_logs_seconds", age_s=30 * 86_400.0), Rates(), ""),
        (SIZE, Rates(100_000, log_bytes_per_second=1e6), "writes about 100.0 GB of log while the tables are read"),
        (SIZE, Rates(100_000, log_bytes_per_second=1e3), ""),
        (SIZE, Rates(100_000), ""),
    ],
)
def test_backfill_that_outlasts_what_the_source_keeps_is_warned_of(limit: LogLimit, rates: Rates, said: str) -> None:
    """M14: a daemon that is stopped on the second day of a first backfill finds its log purged, and begins again."""
    found = planned(TablePreview(A, 1, rows=10_000_000_000, bytes=1), None, rates=rates, limits=(limit,))
    assert found.limits == (limit,)
    warned = [w for w in found.warnings if limit.name in w]
    assert bool(warned) == bool(said)
    assert all(said in w and f"raise {limit.name} first" in w for w in warned)
