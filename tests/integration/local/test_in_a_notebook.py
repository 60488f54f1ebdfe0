"""Merges and the live view in a notebook whose environment has no ipywidgets, as a kernel in a container has not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

NOTEBOOK = """
import sys, types

# What DuckDB knows a kernel by: no __file__ in __main__, and this.
sys.modules["IPython"] = kernel = types.ModuleType("IPython")
kernel.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["ipywidgets"] = None

import duckdb
from cdcflow import local

assert duckdb.__jupyter__, "the kernel was not known as one"
log, warehouse = sys.argv[1:]
assert local.merge(log, warehouse).cut == 1
assert local.read_live(log, warehouse)["public.orders"].num_rows == 2
print(local.read_cut(warehouse)["public.orders"].num_rows)
"""


def test_merges_and_the_live_view_need_no_widgets(hand_log: HandLog, warehouse: Path) -> None:
    """DuckDB refuses to set its progress bar there, off as well as on: each call ended with DuckDB's exception."""
    orders = make_table("orders", id="int64")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n}) for n in (1, 2)])
    command = [sys.executable, "-c", NOTEBOOK, str(hand_log.root), str(warehouse)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["2"]), done.stderr
