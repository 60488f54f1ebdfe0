"""Two values that are easily swapped have types that mypy does not let anyone swap."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]
PREAMBLE = """\
from cdcflow.capture.interleave.messages import Advanced, MarkSeen, Proven, Repair
from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.progress import Gap
from cdcflow.capture.interleave.window import window_number
from cdcflow.capture.ports.source import Prepared, SourceHistory, TablesToReread
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, Token
from cdcflow.model.change import KeySet
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, StreamProgress, binlog_position_of, coordinate
from cdcflow.sources.mysql.stored_state import MySQLState
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of
from cdcflow.sources.postgres.slot_names import Names
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.unbroken import check_names
from cdcflow.sources.memory.stored_state import MemoryState
from cdcflow.sources.postgres.stored_state import PostgresState

def swapped(
    slot: Slot, names: Names, lsn: Lsn, begin: BinlogPosition, checkpoint: Checkpoint, progress: StreamProgress,
    mysql: MySQLState, postgres: PostgresState, gtids: MysqlGtids, mariadb: MariadbGtids, offset: Offset,
    position: Position, text: str, token: Token, epoch: Epoch,
    backlog: Backlog, table: TableId, keys: KeySet,
) -> object:
"""
SWAPS = {
    "an offset for an LSN": "slot.check_whole(offset)",
    "a position's text for an LSN": "slot.check_whole(position_of(lsn))",
    "an LSN for a position in the binary log": "StreamProgress(lsn, by_gtid=False)",
    "a set of GTIDs for a position in the binary log": "StreamProgress(gtids, by_gtid=False)",
    "a text for a position": "Advanced(text)",
    "an offset for a position": "Advanced(offset)",
    "an LSN for a position": "Advanced(lsn)",
    "a position in the binary log for a position": "Checkpoint(position=begin)",
    "a text for a position to parse": "lsn_of(text)",
    "an LSN for a position in the binary log to parse": "binlog_position_of(lsn)",
    "a position for an offset": "Checkpoint(next_offset=position)",
    "a position for a text": "Lsn.parse(position)",
    "a set of GTIDs for an LSN": "slot.check_whole(gtids)",
    "MariaDB's set of GTIDs for MySQL's": "gtids.covers(mariadb)",
    "the history for the tables to read again": "Prepared(checkpoint, TablesToReread(), SourceHistory.LOST)",
    "one dialect's state for another's": "check_names(mysql, names)",
    "a mark's token for a position": "Advanced(token)",
    "a mark's token for a position's text": "Position(token)",
    "a position for a mark's token": "MarkSeen(position, position, 0)",
    "a text for a mark's token": "progress.expect(text, begin.coordinate)",
    "a mark's token compared with a text": "token == text",
    "a mark's token compared with a position": "token == position",
    "a time for a coordinate": "progress.expect_time(begin.coordinate, 5)",
    "an epoch for an offset": "Checkpoint(next_offset=epoch)",
    "an offset for an epoch": "Checkpoint(epoch=offset)",
    "the number of a cut for an epoch": "Checkpoint(epoch=checkpoint.cut)",
    "the number of a cut for an offset": "Checkpoint(next_offset=checkpoint.cut)",
    "an offset for a mark's epoch": "window_number(token, offset)",
    "an offset for a comparison's epoch": "Proven(table, position, offset)",
    "a text for a comparison's position": "Proven(table, text, epoch)",
    "an offset for a gap's epoch": "Gap(offset, 1, offset, text, text)",
    "a text for a repair's position": "Repair(table, keys, text)",
    "a base for a base's position": "backlog.attach(table, text, epoch, offset, text)",
    "an epoch for a base's offset": "backlog.attach(table, text, epoch, epoch, position)",
    "a byte of the binary log for a set of GTIDs": "BinlogPosition(begin.file, begin.pos, begin.pos)",
    "a set of GTIDs for a file of the binary log": "BinlogPosition(begin.gtids, begin.pos)",
    "a file of the binary log for a set of GTIDs": "BinlogPosition(begin.file, begin.pos, begin.file)",
    "a set of GTIDs for a coordinate's file": "coordinate(begin.gtids, begin.pos)",
    "a byte of the binary log for a coordinate": "progress.expect(token, begin.pos)",
    "an LSN compared with an offset": "lsn == offset",
    "an LSN compared with a position in the binary log": "lsn < begin",
    "positions in two binary logs' order": "begin < begin",
    "a position compared with a text": "position == text",
    "a position compared with an LSN": "position == lsn",
    "positions in an order": "position < position",
}
RIGHT = [
    "slot.check_whole(lsn)",
    "StreamProgress(begin, by_gtid=False)",
    "gtids.covers(gtids)",
    "progress.expect_time(5, begin.coordinate)",
    "Prepared(checkpoint, SourceHistory.LOST, TablesToReread())",
    "check_names(postgres, names)",
    "Advanced(position_of(lsn))",
    "Checkpoint(next_offset=offset)",
    "lsn < lsn",
    "Advanced(position)",
    "Lsn.parse(position.text)",
    "lsn_of(position) == lsn",
    "StreamProgress(binlog_position_of(position), by_gtid=False)",
    "position == position",
    "MarkSeen(token, position, 0)",
    "progress.expect(token, begin.coordinate)",
    "token == Token(token.text)",
    "Checkpoint(epoch=epoch)",
    "window_number(token, epoch)",
    "Proven(table, position, epoch)",
    "Gap(offset, 1, epoch, text, text)",
    "Repair(table, keys, position)",
    "backlog.attach(table, text, epoch, offset, position)",
    "BinlogPosition(begin.file, begin.pos, begin.gtids)",
    "coordinate(BinlogFile(text), begin.pos)",
]


def test_mypy_refuses_each_swap_at_its_line(tmp_path: Path) -> None:
    """A position that is taken for another kind's is a gap, and no other test may provoke it."""
    lines = PREAMBLE.splitlines()
    expected = {}
    for what, line in SWAPS.items():
        lines.append(f"    {line}")
        expected[len(lines)] = what
    lines += [f"    {line}" for line in RIGHT]
    module = tmp_path / "swaps.py"
    module.write_text("\n".join([*lines, "    return None", ""]))
    told, failure, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-pretty", str(module)])
    assert not failure
    refused = {int(number) for number in re.findall(r"swaps\.py:(\d+): error", told)}
    assert refused == set(expected), f"not refused: {[w for n, w in expected.items() if n not in refused]}\n{told}"
