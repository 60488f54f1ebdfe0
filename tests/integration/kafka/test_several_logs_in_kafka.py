"""A log in Kafka and one in a folder, read as one."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.daemon.bank import Bank
from tests.support.polling import wait_for

import cdcflow
from cdcflow.log.query.common_clock import Common
from cdcflow.log.query.several_logs import Logs
from cdcflow.model.table import OFFSET


def come_to(logs: Logs, clock: int) -> Common:
    """Wait until both logs have reached a commit clock."""
    return wait_for(logs.common, lambda common: common.commit_clock >= clock, "both logs to reach the clock")


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.kafka
def test_changes_of_a_topic_and_a_folder_are_returned_in_one_order(bank: Bank, tmp_path: Path) -> None:
    """Up to a time that both have reached, and an idle topic's clock advances by its heartbeats."""
    (tmp_path / "other").mkdir()
    other = Bank(bank.database, tmp_path / "other", create=False)
    for one in (bank, other):
        one.configure(heartbeat="300ms")
    bank.start_writing(seed=3)
    daemons = [one.daemon() for one in (bank, other)]
    for one, daemon in zip((bank, other), daemons, strict=True):
        one.wait_until(partial(one.has_reached, ""), "the first backfill", daemon)
    bank.stop_writing()
    logs = cdcflow.open_logs({"folder": other.config_path, "topic": bank.config_path})
    clock = bank.database.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
    assert come_to(logs, clock).behind >= 0
    come_to(logs, clock + 1_500_000)  # nothing is written from now
    seen: dict[str, list[int]] = {"folder": [], "topic": []}
    order: list[tuple[int, str]] = []
    cursor = None
    for batch in logs.changes():
        seen[batch.log] += batch.rows.column(OFFSET).to_pylist()
        order += [(int(batch.rows.column("_commit_clock").cast("int64")[0].as_py()), batch.log)]
        cursor = batch.cursor
    assert all(a <= b for a, b in pairwise(order))
    for name, one in (("topic", bank), ("folder", other)):
        end = int(one.reader.newest_checkpoint().next_offset)
        assert seen[name] == list(range(1, end)), name
    bank.database.execute("INSERT INTO entries (account, amount, note) VALUES (1, 1, 'later')")
    clock = bank.database.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
    come_to(logs, clock)
    later = [(batch.log, batch.rows.column("note").to_pylist()) for batch in logs.changes(cursor)]
    assert sorted(later) == [("folder", ["later"]), ("topic", ["later"])]
    for name, one in (("topic", bank), ("folder", other)):
        table = f"{one.schema}.entries"
        assert logs.current(f"{name}:{table}").num_rows == len(one.source_rows("entries"))
        asked = cdcflow.open(one.config_path)
        newest = asked.now()
        assert asked.moment(newest.position).offset == newest.offset  # by position, with nothing sealed in the topic
    for one, daemon in zip((bank, other), daemons, strict=True):
        one.catch_up_and_stop(daemon)
