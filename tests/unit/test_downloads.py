"""What a fresh machine needs is fetched over a network that fails now and then: each tool that fetches is run again."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tenacity
from tests.servers import downloads as programs
from tests.servers.repository import Repository

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.spark.runtime import downloads

RETRY = Path(__file__).parents[1] / "servers" / "retry.sh"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "WAIT_S_MAX", 0.0)


def _wheel(folder: Path) -> None:
    """A Python package index with one package."""
    (folder / "simple" / "tiny").mkdir(parents=True)
    with zipfile.ZipFile(folder / "simple" / "tiny" / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")


def test_pip_in_make_setup_is_run_again(tmp_path: Path) -> None:
    """pip itself tries some answers again, and takes others (429) as final."""
    _wheel(tmp_path / "index")
    with Repository(tmp_path / "index", every=2, refuses=429) as flaky:
        pip = [sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--no-cache-dir"]
        where = ["--index-url", f"{flaky.url}simple", "--target", str(tmp_path / "made")]
        done = subprocess.run(
            [RETRY, *pip, *where, "tiny"],
            env={**os.environ, "RETRY_WAITS_S": "0 0 0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert flaky.refused
    assert "again in 0 s" in done.stderr
    assert (tmp_path / "made" / "tiny.py").exists()


def test_makefile_installs_only_through_the_retrying_script() -> None:
    """A `pip install` that is added to the Makefile later must be retried, too."""
    makefile = (RETRY.parents[2] / "Makefile").read_text()
    assert makefile.count("$(PIP) install") >= 4
    others = [line for line in makefile.splitlines() if "-m pip install" in line and "retry.sh" not in line]
    assert others == []


def test_retry_ends_as_its_last_attempt_did(tmp_path: Path) -> None:
    done = subprocess.run(
        [RETRY, "sh", "-c", "echo x >> log; exit 7"],
        cwd=tmp_path,
        env={**os.environ, "RETRY_WAITS_S": "0 0"},
        check=False,
    )
    assert done.returncode == 7
    assert (tmp_path / "log").read_text() == "x\n" * 3


def test_go_and_apt_are_run_again(tmp_path: Path) -> None:
    """Both end with an error at the first answer of a server that is not the file."""
    twice = f"echo x >> {tmp_path}/log; test $(wc -l < {tmp_path}/log) = 3 && echo done"
    assert programs.run(["sh", "-c", twice], "something") == "done\n"


def test_program_that_fails_each_time_is_reported_with_its_output() -> None:
    with pytest.raises(SourceUnavailable, match=r"something: sh -c .* failed: no such module"):
        programs.run(["sh", "-c", "echo no such module >&2; exit 1"], "something")


def test_a_missing_java_is_not_waited_for() -> None:
    """Only an error that the server may not repeat is retried."""
    tried = []

    def fail() -> None:
        tried.append(1)
        raise ConfigurationError("there is no Java here")

    with pytest.raises(ConfigurationError):
        downloads.attempts("a jar")(fail)
    assert tried == [1]


def test_waits_grow_and_end() -> None:
    retrying = downloads.attempts("a jar")
    assert isinstance(retrying.stop, tenacity.stop_after_attempt)
    assert isinstance(retrying.wait, tenacity.wait_exponential)


def test_settings_for_ivy_name_one_repository_and_are_gone_afterwards(tmp_path: Path) -> None:
    """An address may hold a password, and a character that XML reserves."""
    given = {"DEFAULT_ARTIFACT_REPOSITORY": "https://someone:s3&cret@mirror.example/maven"}
    with downloads.ivy_settings(tmp_path, given) as file:
        text = file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text.count("<ibiblio") == 1
    assert 'root="https://someone:s3&amp;cret@mirror.example/maven"' in text
    assert 'descriptor="required"' in text
    assert list(tmp_path.iterdir()) == []


def test_settings_of_the_users_own_win(tmp_path: Path) -> None:
    with downloads.ivy_settings(tmp_path, {"CDCFLOW_IVY_SETTINGS": "/some/file.xml"}) as file:
        assert file == Path("/some/file.xml")
