"""What a standby loads while it waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

LOADS = """
import sys
from cdcflow.config import load
from cdcflow.wiring.captures import load_modules
config = load(sys.argv[1])
needed = {"cdcflow.sources.mysql.source", "cdcflow.sinks.kafka.log"}
assert not needed & set(sys.modules), "loaded before, so this test shows nothing"
load_modules(config)
assert needed <= set(sys.modules), needed - set(sys.modules)
"""


def test_standby_loads_the_libraries_of_its_source_and_log(tmp_path: Path) -> None:
    """On a busy machine they take longer than the rest of a takeover."""
    file = tmp_path / "cdcflow.yaml"
    source = {"kind": "mysql", "url": "mysql://shop@localhost:3306/", "tables": ["shop.*"]}
    log = {"kafka": {"brokers": "localhost:9092", "topic": "shop"}}
    file.write_text(yaml.safe_dump({"source": source, "log": log}))
    subprocess.run([sys.executable, "-c", LOADS, file], check=True)
