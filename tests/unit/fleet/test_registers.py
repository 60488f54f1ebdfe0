"""A register in a folder: the latest report of each member, whatever else it contains."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.fleet.simulated import publish, report

from cdcflow.config import Config
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.fleet.members import UnknownMember
from cdcflow.fleet.registers import ReportFolder, object_name, pipeline_of
from cdcflow.fleet.report import REPORT_BYTES_MAX
from cdcflow.fleet.watch import FleetWatch, parse_reports
from cdcflow.wiring.cleanup import _of_fleet

NAME = object_name("shop.eu", "capture", "a")


def test_latest_report_of_each_process_is_read(tmp_path: Path) -> None:
    """A daemon and its standby have the same pipeline, and each its own report."""
    register = ReportFolder(tmp_path / "made" / "here")
    for content in (b"1", b"2"):
        register.publish(NAME, content)
    other = object_name("shop.eu", "capture", "b")
    register.publish(other, b"3")
    assert register.read() == {NAME: b"2", other: b"3"}
    register.publish(NAME, b"4")
    register.remove(other)
    register.remove(other)
    assert register.read() == {NAME: b"4"}
    assert [one.name for one in (tmp_path / "made" / "here").iterdir()] == [NAME]


def test_name_of_a_pipeline_may_have_dots() -> None:
    """`shop.eu` and `shop.us` are two pipelines."""
    assert pipeline_of(NAME) == "shop.eu"
    assert pipeline_of("notes.json") == "notes"


def test_other_files_are_ignored_and_a_garbled_report_is_a_row(tmp_path: Path) -> None:
    """A half written file of another program must not hide the fleet; one of a member must not vanish."""
    publish(tmp_path, report("shop"))
    (tmp_path / "README").write_text("not a report")
    (tmp_path / f".{NAME}.17").write_text("{")
    (tmp_path / "folder.json").mkdir()
    os.symlink("/etc/passwd", tmp_path / "link.capture.0.json")
    (tmp_path / "bad.capture.1.json").write_text("{")
    (tmp_path / "large.capture.1.json").write_bytes(b"x" * (REPORT_BYTES_MAX + 1))
    (tmp_path / "other.capture.1.json").write_bytes(report("shop").to_bytes())
    found = {one.name: one for one in parse_reports(ReportFolder(tmp_path).read()).values()}
    assert sorted(found) == ["bad", "large", "other", "shop"]
    assert found["bad"] == UnknownMember("bad", "its report cannot be read: it is not JSON")
    assert "more than" in getattr(found["large"], "reason", "")
    assert found["other"] == UnknownMember("other", "its report is that of another pipeline")


def test_printed_command_removes_the_reports_of_a_dropped_pipeline_alone(tmp_path: Path) -> None:
    """`cdcflow drop` prints it; `shop.eu` must not take `shop.eu.west` with it."""
    register = tmp_path / "the register"
    for name in ("shop.eu", "shop.eu.west", "shop"):
        publish(register, report(name), report(name, kind="merge", place="m"))
    source = {"kind": "postgres", "url": "postgresql://localhost/shop", "tables": ["public.a"]}
    fleet = {"at": str(register), "name": "shop.eu"}
    config = Config.model_validate({"source": source, "log": {"path": "log"}, "service": {"fleet": fleet}})
    ((subject, command),) = _of_fleet(config)
    assert str(register) in subject
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert sorted({pipeline_of(one.name) for one in register.iterdir()}) == ["shop", "shop.eu.west"]
    assert len(list(register.iterdir())) == 4


def test_missing_folder_is_an_outage_with_what_to_do(tmp_path: Path) -> None:
    """A mistyped folder would otherwise be an empty fleet."""
    with pytest.raises(ConfigurationError, match=r"missing: No such file(.|\n)*start a member that publishes there"):
        ReportFolder(tmp_path / "missing").read()
    watch = FleetWatch([ReportFolder(tmp_path / "missing")], [], 15)
    watch.refresh()
    assert "missing: No such file or directory; start a member" in watch.members.outages()[0].reason


def test_register_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    """The daemon reports it once, and captures on."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CdcflowError, match="writing the fleet's register") as found:
        ReportFolder(tmp_path / "file").publish(NAME, b"1")
    assert isinstance(found.value, SinkUnavailable)
