"""The job as docs/merge.md has it for spark-submit, line by line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.spark import read_cut

pytestmark = [pytest.mark.spark, pytest.mark.long]

PAGE = Path(__file__).parents[3] / "docs" / "merge.md"


def test_the_command_of_the_docs_merges(spark: Any, tmp_path: Path) -> None:
    """Users with a cluster copy it; session, jars and arguments then come only from the submitter."""
    log = HandLog(tmp_path / "shop-log")
    log.segment([(make_table("orders", id="int64", doc="string"), "c", {"id": n, "doc": "pen"}) for n in (1, 2)])
    (command,) = re.findall(r"```bash\n(spark-submit[^`]*)```", PAGE.read_text())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["published"], report["offset"]) == (True, 2)
    rows = read_cut(spark, tmp_path / "warehouse", incomplete=True)["public.orders"].collect()
    assert sorted((row.id, row.doc) for row in rows) == [(1, "pen"), (2, "pen")]
