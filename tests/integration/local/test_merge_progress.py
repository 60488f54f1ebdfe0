"""What `cdcflow merge` prints while it works: on a terminal which table, on a pipe nothing but its events."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.tables.cut import Cut
from cdcflow.tables.job import job
from cdcflow.tables.paths import Warehouse

SETTINGS = """
source: {kind: postgres, url: "postgresql://nobody@127.0.0.1/shop"}
log: {path: ./log}
merge: {engine: local, warehouse: ./warehouse}
"""
MERGE = [sys.executable, "-m", "cdcflow.cli", "merge", "--once"]


def test_terminal_shows_which_table_of_how_many_is_merged(hand_log: HandLog) -> None:
    """A first merge of many tables is long, and silence looks like a hang."""
    tables = [make_table(name, id="int64") for name in ("orders", "products")]
    for table in tables:
        hand_log.state(table)
    hand_log.segment([(table, "c", {"id": 1}) for table in tables])
    folder = hand_log.root.parent
    (folder / "cdcflow.yaml").write_text(SETTINGS)
    ours, theirs = pty.openpty()
    with open(ours, "rb", closefd=True):
        done = subprocess.run(MERGE, cwd=folder, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
        os.set_blocking(ours, False)
        told = os.read(ours, 1 << 16).decode()
        os.close(theirs)
    assert "merging public.orders (1 of 2 tables)" in told
    assert "merging public.products (2 of 2 tables)" in told
    assert "(1 of 2" not in done.stdout


def test_merge_reports_to_the_log_what_it_no_longer_needs(hand_log: HandLog) -> None:
    """Retention by policy waits for this report; a skipped table lowers it again, which harms no reader."""
    table = make_table("orders", id="int64")
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": 1}), (table, "c", {"id": 2})])
    folder = hand_log.root.parent
    (folder / "cdcflow.yaml").write_text(SETTINGS)
    subprocess.run(MERGE, cwd=folder, capture_output=True, check=True)
    layout, name = Layout(hand_log.root), notes.warehouse_name(folder / "warehouse")
    assert notes.read(layout, "merge", name) == notes.Note("merge", name, 2)
    cut = Cut(9, hand_log.log_id, 4, "", 0, {}, {"public.items": "why"})
    job.note(layout, Warehouse.of(folder / "warehouse"), cut)
    assert notes.read(layout, "merge", name) == notes.Note("merge", name, 2, ("public.items",))


def test_pipe_gets_no_progress_lines(hand_log: HandLog) -> None:
    """Logs of a service hold events, a line each, and nothing that is drawn for eyes."""
    table = make_table("orders", id="int64")
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": 1})])
    folder: Path = hand_log.root.parent
    (folder / "cdcflow.yaml").write_text(SETTINGS)
    done = subprocess.run(MERGE, cwd=folder, capture_output=True, text=True, check=True)
    assert "merging" not in done.stderr
    assert "table merged table=public.orders" in done.stderr
