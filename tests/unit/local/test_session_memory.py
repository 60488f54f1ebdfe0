"""DuckDB's memory in a merge without Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import yaml

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.tables.local.engine import DUCKDB_BYTES_MIN
from cdcflow.tables.local.session import DuckSession

LIMIT = "SELECT current_setting('memory_limit')"


def test_rows_beyond_the_limit_are_in_temporary_files_until_the_session_ends() -> None:
    """A merge of a large range uses the disk; without a limit the kernel ends the process first."""
    with closing(DuckSession(32 << 20)) as session:
        name = session.keep("rows", "SELECT range AS a, sha256(CAST(range AS varchar)) AS b FROM range(1000000)")
        (spilled,) = session.rows("SELECT sum(size) FROM duckdb_temporary_files()")
        assert spilled[0] > 10 << 20
        assert session.rows(f"SELECT count(*), count(DISTINCT b[1:6]) > 900000 FROM {name}") == [(1000000, True)]
        assert session._spill is not None
        folder = Path(session._spill.name)
        assert list(folder.iterdir())
    assert not folder.exists()


def test_each_table_gets_a_part_of_what_the_settings_allow(tmp_path: Path) -> None:
    """Three tables are merged at a time, and Arrow's memory is not DuckDB's."""

    def limit_with(**merge: str) -> str:
        source = {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/shop"}
        merge = {"engine": "local", "warehouse": str(tmp_path / "ware"), **merge}
        config = tmp_path / "cdcflow.yaml"
        config.write_text(yaml.safe_dump({"source": source, "log": {"path": str(tmp_path / "log")}, "merge": merge}))
        with closing(wiring.engines(load(config)).first.table(("public", "orders"))) as table:
            ((found,),) = table.session.rows(LIMIT)
            return str(found)

    with closing(DuckSession()) as session:
        ((whole,),) = session.rows(LIMIT)
    assert limit_with(memory_max="1200MiB") == "200.0 MiB"
    assert limit_with(memory_max="100MiB") == f"{DUCKDB_BYTES_MIN >> 20}.0 MiB"
    assert limit_with() == whole
