"""`cdcflow merge` as README has it: `pip install 'cdcflow[local]'`, settings of `cdcflow init`, no pyspark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local

SETTINGS = """
source: {{kind: postgres, url: postgresql://nobody@127.0.0.1/shop}}
log: {{path: {log}}}
merge: {{warehouse: {warehouse}}}
"""
WITHOUT = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "delta"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
sys.argv[0] = "cdcflow"
import cdcflow.local
cdcflow.local.CHANGES_MAX, cdcflow.local.BYTES_MAX = 3, 100
from cdcflow.cli.__main__ import main
main()
"""
"""The command in an environment without pyspark; for the engine `auto` large tables count as small."""

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


@pytest.fixture
def written(hand_log: HandLog) -> HandLog:
    large, span = make_table("large", id="int64"), make_table("spans", id="int64", span=INTERVAL)
    hand_log.state(large)
    hand_log.state(span)
    hand_log.segment([(large, "c", {"id": n}) for n in range(10)] + [(span, "c", {"id": 1, "span": None})])
    hand_log.segment([(large, "u", {"id": n}) for n in range(9)])
    return hand_log


def run(code: str, folder: Path, log: HandLog, *words: str, **variables: str) -> tuple[int, str, str]:
    settings = folder / "cdcflow.yaml"
    settings.write_text(SETTINGS.format(log=log.root, warehouse=folder / "warehouse"))
    command = [sys.executable, "-c", code, words[0], "--config", str(settings), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)
    return done.returncode, done.stdout, done.stderr


def test_without_pyspark_auto_is_local_and_only_tables_that_it_cannot_merge_are_skipped(
    tmp_path: Path, written: HandLog
) -> None:
    """A table of more than 500,000 rows, or one with an `interval`, ended the merge of every table: "merging needs
    pyspark", exit 78, no cut."""
    code, told, errors = run(WITHOUT, tmp_path, written, "merge", "--json")
    assert code == 1, errors  # a table was skipped
    report = json.loads(told)
    left_out: dict[str, Any] = {table["name"]: table["left_out"] for table in report["tables"]}
    assert left_out["public.large"] is None
    assert "column span" in left_out["public.spans"]
    assert "pip install 'cdcflow[spark]'" in left_out["public.spans"]
    assert local.read_cut(tmp_path / "warehouse")["public.large"].num_rows == 10


def test_without_java_it_is_the_same_and_the_remedy_names_java(tmp_path: Path, written: HandLog) -> None:
    """pyspark alone starts nothing."""
    here = "import sys; sys.argv[0] = 'cdcflow'; from cdcflow.cli.__main__ import main; main()"
    code, told, errors = run(here, tmp_path, written, "merge", "--json", JAVA_HOME=str(tmp_path / "no java"))
    assert code == 1, errors
    left_out = {table["name"]: table["left_out"] for table in json.loads(told)["tables"]}
    assert left_out["public.large"] is None
    assert "install Java 17" in left_out["public.spans"]
    assert "pip install" not in left_out["public.spans"].partition("install Java")[0]
