"""Folders that settings name and that cannot be written: an error for the operator, with path, reason and remedy.

Under root every right exists, so the commands run without root's capabilities: they then have their owner's rights.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.docker.confinement import confinement

from cdcflow.config import Config, load
from cdcflow.config.places import check_writable, log_places, naming_paths, of_system, warehouse_places
from cdcflow.config.units import seconds
from cdcflow.errors import ConfigurationError, SinkUnavailable

SETTINGS = """
source: {{kind: postgres, url: "postgresql://cdc@127.0.0.1:{port}/shop", tables: ["public.*"]}}
log: {{path: "{log}"}}
merge: {{warehouse: "{warehouse}", engine: local}}
"""


def _settings(tmp_path: Path, log: str = "log", warehouse: str = "warehouse") -> Path:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = tmp_path / "shop.yaml"
    file.write_text(SETTINGS.format(port=port, log=log, warehouse=warehouse))
    return file


def _cdcflow(*arguments: str | Path, without: bool = True) -> subprocess.CompletedProcess[str]:
    """The command as an ordinary user runs it: without the capability to bypass permissions."""
    ordinary = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if without and os.geteuid() == 0 else []
    command = [*ordinary, sys.executable, "-m", "cdcflow.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _no_rights(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "shut").mkdir(mode=0o500)
    return "shut/log", "Permission denied (EACCES)"


def _own_folder_without_rights(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "log").mkdir(mode=0o500)
    return "log", "Permission denied (EACCES)"


def _folder_inside_without_rights(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "log" / "journal").mkdir(parents=True)
    (tmp_path / "log" / "journal").chmod(0o500)
    return "log", "journal: Permission denied (EACCES)"


def _file(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "log").write_text("")
    return "log", "Not a directory (ENOTDIR)"


def _below_a_file(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "file").write_text("")
    return "file/log", "Not a directory (ENOTDIR)"


def _long_name(tmp_path: Path) -> tuple[str, str]:
    return "x" * 300, "File name too long (ENAMETOOLONG)"


def _loop(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "log").symlink_to(tmp_path / "log")
    return "log", "Too many levels of symbolic links (ELOOP)"


WRONG = (_no_rights, _own_folder_without_rights, _folder_inside_without_rights, _file, _below_a_file, _long_name, _loop)


@pytest.mark.spread(1)
@pytest.mark.parametrize("command", ["run", "merge", "upkeep"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_folder_that_cannot_be_written_is_named_with_its_setting(command: str, wrong: object, tmp_path: Path) -> None:
    """It was "a fault in cdcflow" without a path, and exit code 70, which no service manager knows what to do with."""
    assert callable(wrong)
    place, said = wrong(tmp_path)
    setting = "log.path" if command == "run" else "merge.warehouse"
    settings = _settings(tmp_path, place) if command == "run" else _settings(tmp_path, "other", place)
    done = _cdcflow(command, "-c", settings)
    assert done.returncode == 78, done.stderr
    assert done.stderr.startswith(f"ConfigurationError: {setting} {tmp_path}/")
    assert said in done.stderr
    assert setting in done.stderr.splitlines()[1], "what to do names the setting"
    assert "fault in cdcflow" not in done.stderr


@pytest.mark.parametrize("wrong", WRONG)
def test_each_folder_is_found_before_anything_is_created(wrong: object, tmp_path: Path) -> None:
    """The check itself creates nothing: an existing empty folder would count as the loss of an earlier log."""
    assert callable(wrong)
    place, _ = wrong(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    settings = load(_settings(tmp_path, log=place))
    if os.geteuid() != 0 or wrong in (_file, _below_a_file, _long_name, _loop):
        with pytest.raises(ConfigurationError):
            check_writable(log_places(settings))
    assert sorted(p for p in tmp_path.rglob("*") if p.name != "shop.yaml") == before


def test_the_remedy_ends_it(tmp_path: Path) -> None:
    """A printed remedy is a promise: with the right granted, the daemon gets as far as its source, which is
    unavailable."""
    place, _ = _no_rights(tmp_path)
    settings = _settings(tmp_path, log=place)
    refused = _cdcflow("run", "-c", settings)
    assert f"{tmp_path}/shut belongs to" in refused.stderr
    assert "give it the right to write there" in refused.stderr
    (tmp_path / "shut").chmod(0o700)
    assert _cdcflow("run", "-c", settings).returncode == 69


def test_a_disk_that_is_mounted_read_only_is_named_as_one(tmp_path: Path) -> None:
    """Kubernetes mounts a container's root like this: chmod does not help there."""
    prefix = confinement([])
    if not prefix:
        assert shutil.which("unshare") is None or os.geteuid() != 0
        return
    settings = _settings(tmp_path)
    command = [*prefix, sys.executable, "-m", "cdcflow.cli", "run", "-c", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 78
    assert "Read-only file system (EROFS)" in done.stderr
    assert "mount it writable, or name another folder in log.path" in done.stderr


def test_a_reader_of_a_log_without_rights_gets_the_path(tmp_path: Path) -> None:
    """Commands that only read check nothing first: a refusal by the system is reported in the same words."""
    (tmp_path / "log" / "journal").mkdir(parents=True)
    (tmp_path / "log" / "log.json").write_text("{}")
    (tmp_path / "log" / "log.json").chmod(0o000)
    done = _cdcflow("log", "check", "-c", _settings(tmp_path))
    assert done.returncode == 78, done.stderr
    assert f"{tmp_path}/log/log.json: Permission denied (EACCES)" in done.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_setting_to_change(code: int) -> None:
    """A service manager should start it again when there is space."""
    error = of_system(OSError(code, os.strerror(code), "/data/warehouse/part-0"))
    assert isinstance(error, SinkUnavailable)
    assert "/data/warehouse/part-0" in str(error)
    assert errno.errorcode[code] in str(error)


def test_an_error_without_a_path_stays_what_it_was() -> None:
    """Only the system's refusals of a path are the operator's; a library's own OSError may be a fault in cdcflow."""
    with pytest.raises(OSError, match="Generic error"), naming_paths():
        raise OSError("Generic error")
    with pytest.raises(BrokenPipeError), naming_paths():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(FileNotFoundError), naming_paths():
        raise FileNotFoundError(errno.ENOENT, "No such file", "/log/segment")
    with pytest.raises(ConfigurationError, match=r"/w/x: Permission denied \(EACCES\)"), naming_paths():
        raise PermissionError(errno.EACCES, "Permission denied", "/w/x")


def test_every_folder_that_settings_name_is_checked(tmp_path: Path) -> None:
    """A setting with a folder that is added later has to be added there as well."""
    text = """
source: {kind: postgres, url: "postgresql://u@h/d", tables: ["*.*"]}
log: {path: log, objects: {url: "s3://b/p", cache: cache}}
"""
    (tmp_path / "a.yaml").write_text(text)
    config: Config = load(tmp_path / "a.yaml")
    assert log_places(config) == {"log.path": tmp_path / "log", "log.objects.cache": tmp_path / "cache"}
    assert warehouse_places(config) == {"merge.warehouse": tmp_path / "warehouse"}
    kafka = """
source: {kind: postgres, url: "postgresql://u@h/d", tables: ["*.*"]}
log: {kafka: {brokers: "127.0.0.1:1", topic: t, work: work, history: history}}
"""
    (tmp_path / "b.yaml").write_text(kafka)
    found = log_places(load(tmp_path / "b.yaml"))
    assert found == {"log.kafka.work": tmp_path / "work" / "t", "log.kafka.history": tmp_path / "history"}


def test_no_time_is_no_interval() -> None:
    """The error for `--every 0s` was that it must be a number with a unit, which it is."""
    with pytest.raises(ConfigurationError, match="a time must be more than 0s, and 0s is not"):
        seconds("0s")
    with pytest.raises(ConfigurationError, match="a number with a unit"):
        seconds("often")
    assert seconds("0s", zero=True) == 0
