"""Manifests, paths and jars: what is decided before a Spark session is used (no test here starts one)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table, TableId
from cdcflow.spark import jars, job
from cdcflow.tables.paths import table_path
from cdcflow.tables.segments import sealed_range, shapes_of, visible


def without_first(log: Any) -> None:
    """The oldest segment expires."""
    layout = Layout(log.root)
    shutil.rmtree(layout.segment(*layout.segment_offsets()[0]))


def test_position_before_the_log_s_beginning_is_lost_history(make_table: Callable[..., Table], hand_log: Any) -> None:
    """Continuing from there would skip changes silently; the message names the backfill that repairs it."""
    table = make_table()
    for key in (1, 2, 3):
        hand_log.segment([(table, "c", {"id": key})])
    without_first(hand_log)
    log = sealed_range(hand_log.root)
    assert log.reaches(after_cut=1)
    assert not log.reaches(after_cut=0)
    assert log.has(2)
    assert not log.has(1)
    assert not log.has(0)
    lost = log.history_lost(table.id, after_cut=0)
    assert isinstance(lost, HistoryLost)
    assert "cdcflow backfill public.orders" in str(lost)
    assert "begins at cut 2" in str(lost)


def test_a_segment_that_is_missing_between_two_others_stops(make_table: Callable[..., Table], hand_log: Any) -> None:
    """A hole in the middle is damage, not retention."""
    for key in (1, 2, 3):
        hand_log.segment([(make_table(), "c", {"id": key})])
    layout = Layout(hand_log.root)
    shutil.rmtree(layout.segment(*layout.segment_offsets()[1]))
    with pytest.raises(InvariantViolated, match="missing"):
        sealed_range(hand_log.root)


def test_only_files_after_the_cut_are_read(make_table: Callable[..., Table], hand_log: Any) -> None:
    """The cost of a merge grows with what is new, not with the log."""
    one, other = make_table("one"), make_table("other")
    hand_log.segment([(one, "c", {"id": 1}), (other, "c", {"id": 1})])
    hand_log.segment([(one, "c", {"id": 2})])
    log = sealed_range(hand_log.root)
    assert [f.file.first_offset for f in log.files(one.id, 1)] == [3]
    assert log.files(other.id, 1) == []


def test_shape_that_reappears_is_the_latest(make_table: Callable[..., Table], hand_log: Any) -> None:
    """A column that was added and dropped again: the shape in force is the first one, by its old number."""
    narrow, wide = make_table(id="int64"), make_table(id="int64", x="int32")
    for shape in (narrow, wide, narrow):
        hand_log.segment([(shape, "c", {"id": 1})])
    assert shapes_of(sealed_range(hand_log.root).files(narrow.id, 0)) == [wide, narrow]


def test_no_file_has_a_name_that_spark_treats_as_hidden(make_table: Callable[..., Table], hand_log: Any) -> None:
    """A schema may be called _x; Spark silently reads no row of a file whose name begins like that."""
    table = make_table(schema="_x")
    hand_log.segment([(table, "c", {"id": 1})])
    (file,) = sealed_range(hand_log.root).files(table.id, 0)
    assert Path(file.path).name == "%5Fx.orders.1.parquet"


def test_older_file_that_spark_would_treat_as_hidden_gets_a_name_it_reads(
    make_table: Callable[..., Table], hand_log: Any, tmp_path: Path
) -> None:
    """An older cdcflow wrote file names that begin with an underscore."""
    table = make_table(schema="_x")
    hand_log.segment([(table, "c", {"id": 1})])
    (file,) = sealed_range(hand_log.root).files(table.id, 0)
    older = replace(file, path=str(Path(file.path).rename(Path(file.path).with_name("_x.orders.1.parquet"))))
    seen = Path(visible(older, tmp_path).path)
    assert not seen.name.startswith(("_", "."))
    assert seen.read_bytes() == Path(older.path).read_bytes()
    # Another log, or this one compacted, has a file of that name and first offset, too.
    other = tmp_path / "other" / "_x.orders.1.parquet"
    other.parent.mkdir()
    other.write_bytes(b"other")
    assert Path(visible(replace(older, path=str(other)), tmp_path).path).read_bytes() == b"other"
    assert visible(older, tmp_path).path == str(seen)


def test_no_name_escapes_the_warehouse_or_collides_with_another() -> None:
    """S11: names are the source's, paths are cdcflow's."""
    names = ["..", ".", "a/b", "a", "_a", "a%2Fb", "a~2Fb", "~", "_cdcflow_cuts", "Ä"]
    paths = [table_path(TableId(schema, name)) for schema in names for name in names]
    assert len(set(paths)) == len(paths)
    for path in paths:
        schema, name = path
        assert "/" not in schema + name
        assert not schema.startswith((".", "_"))
        assert not name.startswith((".", "_"))


def test_machine_without_the_jars_gets_an_error_that_explains_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own error for this is a page of Java."""
    monkeypatch.setenv("CDCFLOW_JARS", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"python -m cdcflow\.spark\.jars"):
        jars.jars()


@pytest.mark.parametrize("warehouse", [Path("s3a://bucket/shop"), "s3a:/b"])
def test_url_that_became_a_path_is_refused_and_nothing_is_created(
    warehouse: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_log: Any
) -> None:
    """As a path it would be a folder of that name next to the settings, where it would not be found."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match=r"name it as text: s3a://bucket/path"):
        job.merge(None, hand_log.root, warehouse)  # type: ignore[arg-type]  # the check needs no session
    assert sorted(tmp_path.iterdir()) == before


def test_rows_of_before_an_offset_are_not_read(make_table: Callable[..., Table], hand_log: Any) -> None:
    """A table begins where a backfill of it was done, and that may be inside a segment and a file."""
    old, new = make_table(id="int64"), make_table(id="string")
    hand_log.segment([(old, "c", {"id": 1}), (old, "c", {"id": 2}), (new, "r", {"id": "1"}), (new, "r", {"id": "2"})])
    log = sealed_range(hand_log.root)
    assert [(f.shape, f.after) for f in log.files(old.id, 0, since=2)] == [(old, 1), (new, 1)]
    assert [(f.shape, f.after) for f in log.files(old.id, 0, since=4)] == [(new, 3)]
