"""A process that the daemon starts: what its memory is, how it ends, and that settings reach it unchanged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.polling import wait_until

from cdcflow.config import Config, load
from cdcflow.daemon.child_process import ChildProcess, list_tree, machine_bytes, memory_bytes

BYTES = 64 << 20
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import sys, time
held = bytearray(b"x") * {BYTES}
print("held", flush=True)
time.sleep(600)
'''], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
SETTINGS = """
source: {kind: postgres, url: "postgresql://cdcflow@db/shop", password: "${env:PASSWORD}", tables: ["shop.*"]}
log:
  path: ./log
  objects: {url: "s3://shop/log", access_key: "${file:key}", secret_key: "${env:SECRET}"}
  retention: {age: 7d}
merge:
  warehouse: s3a://shop/lake
  every: 2s
  memory_max: 2GiB
  catalog: {type: hive, uri: "thrift://metastore:9083"}
  tables: {readable: wide, each: {shop.orders: {mode: history}}}
  spark: {spark.master: "local[2]"}
  keep: 7d
service: {listen: "127.0.0.1:8079", tokens: [{name: ops, token: "${env:TOKEN}"}]}
publish: {kafka: {brokers: "kafka:9092", topic_prefix: shop}}
"""
KAFKA = """
source: {kind: mysql, url: "mysql://cdcflow@db/", tables: ["shop.*"]}
log: {kafka: {brokers: "kafka:9092", topic: shop, history: ./history}}
merge: {warehouse: ./lake, every: 30s}
"""
STORE_ALONE = """
source: {kind: mariadb, url: "mysql://cdcflow@db/", tables: ["shop.*"]}
log: {objects: {url: "s3://shop/log", cache: ./cache}}
merge: {warehouse: ./lake, every: 30s}
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def family() -> Iterator[tuple[ChildProcess, int]]:
    """A process, and one in a different session that it has started and that has `BYTES`."""
    with ChildProcess([sys.executable, "-c", PARENT]) as process:
        line = wait_until(process.lines, "the grandchild")
        yield process, int(line[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports memory this way")
def test_memory_is_that_of_all_descendants(family: tuple[ChildProcess, int]) -> None:
    """Spark's memory is in Java, a process that the merge process starts."""
    process, grandchild = family
    tree = list_tree(process.pid)
    assert set(tree) == {process.pid, grandchild}
    used, alone = memory_bytes(tree), memory_bytes([process.pid])
    assert used is not None
    assert alone is not None
    assert used > BYTES > alone
    assert memory_bytes([]) == 0


def test_descendants_in_other_sessions_end_with_it(family: tuple[ChildProcess, int]) -> None:
    """What a merge has started must not keep its memory, or the warehouse."""
    process, grandchild = family
    process.kill()
    assert process.wait() == -9
    wait_until(lambda: not is_running(grandchild), "the grandchild to end")
    assert process.lines() is None
    process.kill()  # its number may be another process's now


def test_lines_arrive_whole() -> None:
    """A pipe passes on parts of lines."""
    with ChildProcess(["/bin/sh", "-c", "printf 'on'; sleep 0.2; printf 'e\\ntwo\\nthr'; read -r word"]) as process:
        found: list[bytes] = []
        while len(found) < 2:
            found += process.lines() or []
        process.send(b"end")
        wait_until(lambda: process.lines() is None, "its end")
        assert process.wait() == 0
    assert found == [b"one", b"two"]


def test_exit_code_of_a_process_that_still_ends_is_its_own() -> None:
    """Its stdout ends first, and the code shows whether it failed or was killed."""
    with ChildProcess(["/bin/sh", "-c", "exec 1>&-; sleep 0.3; exit 78"]) as process:
        wait_until(lambda: process.lines() is None, "the end of its stdout")
        assert process.wait() == 78


def test_machine_has_memory() -> None:
    """The default of `merge.memory_max` is half of it."""
    assert 1 << 26 < machine_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("text", [SETTINGS, KAFKA, STORE_ALONE])
def test_settings_reach_the_merge_process_unchanged(tmp_path: Path, text: str) -> None:
    """It merges with the settings that the daemon runs with: the file may have changed since."""
    (tmp_path / "cdcflow.yaml").write_text(text)
    config = load(tmp_path / "cdcflow.yaml")
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
