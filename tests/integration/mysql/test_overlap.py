"""A server that is put back to a copy of its files, and goes its own way from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from capturing import LOG_ID
from mysqlcapturing import MakeMySQLCapture

from cdcflow.changelog.transactions import HEADERS_BACK
from cdcflow.errors import HistoryLost
from cdcflow.interleave.messages import Committed
from cdcflow.model.change import Run
from cdcflow.model.position import Position
from cdcflow.testing.mysql import Flavor, MySQLServer

pytestmark = pytest.mark.mysql

WITHOUT_GTIDS = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}


@pytest.fixture(params=["mysql without GTIDs", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    flavor: Flavor = "mariadb" if request.param == "mariadb" else "mysql"
    with MySQLServer(flavor, WITHOUT_GTIDS if "without" in request.param else None) as made:
        yield made


def copied(source: Path, target: Path) -> None:
    """Copy the files of a server that is stopped, with their owner."""
    owner = source.stat()
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def logged(runs: list[Run]) -> pa.Table:
    """These transactions as a log shows them."""
    columns: dict[str, list[object]] = {"number": [], "position": [], "xid": [], "commit_ts": []}
    for run in runs:
        columns["position"] += run.position.to_pylist()
        columns["xid"] += run.xid.tolist()
        columns["commit_ts"] += run.commit_ts.tolist()
    columns["number"] = list(range(1, len(columns["xid"]) + 1))
    return pa.table(columns).cast(HEADERS_BACK)


def test_copy_with_other_transactions_at_our_position_is_found_out(
    server: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """Same identity, file and GTIDs, and a transaction of the same size ends just where our log ends."""
    database = server.create_database("copied")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    first = make_capture(database)
    begun = first.prepare()
    first.close()
    server.stop()
    kept = server.directory / "copy"
    copied(server.data, kept)
    server.start()
    writes = ["FLUSH BINARY LOGS", *(f"INSERT INTO t VALUES ({n}, '{{}}')" for n in range(7))]
    database.execute(*(text.format("original") for text in writes))
    capture = make_capture(database)
    capture.prepare(begun)
    ours = logged([e.run for e in capture.events() if isinstance(e, Committed) and isinstance(e.run, Run)])
    assert len(ours) == 7
    capture.close()
    at_end = replace(begun, position=Position(ours.column("position")[-1].as_py()), next_transaction=8)

    def back(rows: pa.Table) -> Callable[[Callable[[Position], bool]], pa.Table]:
        return lambda is_enough: rows

    # What the server sends behind our place in the file is the next one, whose bytes are counted from the start.
    database.execute("FLUSH BINARY LOGS", "INSERT INTO t VALUES (8, 'later')")
    again = make_capture(database).source
    for rows in (ours, ours.slice(6), ours.slice(0, 0)):
        assert again.prepare(at_end, LOG_ID, back(rows)).position == at_end.position
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    server.start()
    database.execute(*(text.format("restored") for text in writes), "INSERT INTO t VALUES (9, 'more')")
    source = make_capture(database).source
    assert source.prepare(at_end, LOG_ID).position == at_end.position
    for rows in (ours, ours.slice(6)):
        with pytest.raises(HistoryLost, match=r"restored from a copy(.|\n)*cdcflow run --accept-history-loss"):
            source.prepare(at_end, LOG_ID, back(rows))
    accepted = replace(at_end, source={**at_end.source, "accept_history_loss": "yes"})
    made = source.prepare(accepted, LOG_ID, back(ours))
    assert made.source["history"] == "lost"
    # What the log has from before is not compared with this server's from then on.
    assert source.prepare(replace(made, position=at_end.position), LOG_ID, back(ours))
