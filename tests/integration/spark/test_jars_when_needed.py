"""A machine without Spark's jars: they are fetched when a session first needs them, or one error explains why not.

The repository is a folder with the jars of this machine's cache, so no network is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.servers import ivy
from tests.servers.repository import Repository

from cdcflow.errors import SourceUnavailable
from cdcflow.spark import jars
from cdcflow.spark.runtime import downloads

pytestmark = pytest.mark.spark

START = (
    "from cdcflow.spark.session import session\n"
    "session(cores=1, memory='512m', settings={'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'}).stop()\n"
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>io.delta</groupId><artifactId>{}</artifactId><version>{}</version>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>io.delta</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """A separate Maven repository with Delta's two jars."""
    version = jars.DELTA.rpartition(":")[2]
    first, second = jars.DELTA.split(":")[1], "delta-storage"
    for name, needs in ((first, _DEPENDENCY.format(second, version)), (second, "")):
        folder = tmp_path / "repository" / "io" / "delta" / name / version
        folder.mkdir(parents=True)
        (folder / f"{name}-{version}.pom").write_text(_POM.format(name, version, needs))
        shutil.copy(jars.folder() / f"io.delta_{name}-{version}.jar", folder / f"{name}-{version}.jar")
    return f"file://{tmp_path}/repository/"


def _run(code: list[str], environment: Mapping[str, str], home: Path) -> subprocess.CompletedProcess[str]:
    # A separate home: otherwise this user's Maven cache would be searched first.
    java = f"-Duser.home={home}"
    wanted = {**os.environ, "JAVA_TOOL_OPTIONS": java, **environment}
    return subprocess.run([sys.executable, *code], env=wanted, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_first_session_fetches_its_jars_and_reports_it_in_one_line(repository: str, tmp_path: Path) -> None:
    """The first merge on a fresh machine works, and prints neither Ivy's pages nor Spark's banner."""
    place = tmp_path / "jars" / "delta"
    given = {"CDCFLOW_JARS": str(place), "DEFAULT_ARTIFACT_REPOSITORY": repository}
    done = _run(["-c", START], given, tmp_path)
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "Picked up JAVA_TOOL_OPTIONS" not in line]
    assert len(told) == 1
    assert "fetching jars" in told[0]
    assert "13 MB" in told[0]
    assert {path.name.split("_")[1][:13] for path in place.iterdir()} == {"delta-spark", "delta-storage"}


@pytest.mark.long
def test_error_about_jars_that_cannot_be_fetched_explains_why_and_its_remedy_works(
    repository: str, tmp_path: Path
) -> None:
    """A firewall is the usual case: the remedy's command is then run once, where there is a way."""
    given = {
        "CDCFLOW_JARS": str(tmp_path / "jars" / "delta"),
        "DEFAULT_ARTIFACT_REPOSITORY": "http://someone:s3cret@127.0.0.1:9/maven/",
    }
    done = _run(["-c", START], given, tmp_path)
    assert done.returncode != 0
    assert "127.0.0.1:9 said ConnectException: Connection refused" in done.stderr
    assert "run `python -m cdcflow.spark.jars` once" in done.stderr
    assert "s3cret" not in done.stderr
    assert "resolution report" not in done.stderr
    mended = _run(["-m", "cdcflow.spark.jars"], {**given, "DEFAULT_ARTIFACT_REPOSITORY": repository}, tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert mended.stdout == f"{tmp_path}/jars/delta\n"
    assert mended.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(("every", "refuses"), [(5, 429), (4, 503), (4, 0)])
def test_repository_that_refuses_some_requests_once_is_queried_again(
    repository: str, tmp_path: Path, every: int, refuses: int
) -> None:
    """Fresh machines failed at this: one refusal ended it, or left a package that others need out without an error."""
    place = tmp_path / "jars" / "delta"
    with Repository(tmp_path / "repository", every=every, refuses=refuses) as flaky:
        given = {"CDCFLOW_JARS": str(place), "DEFAULT_ARTIFACT_REPOSITORY": flaky.url}
        done = _run(["-m", "cdcflow.spark.jars"], given, tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(request.endswith((".pom", ".jar")) for request in flaky.refused)
    fetched = sorted(path.name for path in place.glob("*.jar"))
    assert fetched == sorted(p.name for p in jars.folder().glob("io.delta_delta-s*.jar"))
    assert all((place / name).read_bytes() == (jars.folder() / name).read_bytes() for name in fetched)
    loads = [request for request in flaky.asked if request.startswith("GET") and request not in flaky.refused]
    assert len(loads) == len(set(loads)), "what had arrived whole was fetched again"


@pytest.mark.long
def test_only_the_configured_repository_is_queried_and_its_answer_is_reported(repository: str, tmp_path: Path) -> None:
    """The message named a server that Spark adds, not the one that failed, and not what was missing."""
    with Repository(tmp_path / "repository", every=10**9, refuses=503) as answering:
        shutil.rmtree(tmp_path / "repository" / "io" / "delta" / "delta-storage")
        given = {"CDCFLOW_JARS": str(tmp_path / "jars" / "d"), "DEFAULT_ARTIFACT_REPOSITORY": answering.url}
        done = _run(["-m", "cdcflow.spark.jars"], given, tmp_path)
    assert done.returncode == 1
    version = jars.DELTA.rpartition(":")[2]
    told = done.stderr.splitlines()[-2]
    assert f"io.delta:delta-storage:{version} was not found; {answering.url[:-1]} said 404 File not found" in told
    assert "no address of" not in done.stderr
    assert "download failed" not in done.stderr, "a missing file is not requested again"


def test_fetch_of_jars_for_tests_by_ivy_is_repeated(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry, a catalog: the jars of `make servers` that Spark's resolver does not fetch."""
    version = jars.DELTA.rpartition(":")[2]
    asked = [ivy.artifacts(f"io.delta:delta-storage:{version}")]
    with Repository(tmp_path / "repository", every=2, refuses=429) as flaky:
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", flaky.url)
        (tmp_path / "room").mkdir()
        folder = ivy.fetch("a jar", asked, tmp_path / "room")
        assert [path.name for path in folder.iterdir()] == [f"delta-storage-{version}.jar"]
        assert flaky.refused
        monkeypatch.setattr(downloads, "WAIT_S_MAX", 0.0)
        (tmp_path / "other").mkdir()
        with pytest.raises(
            SourceUnavailable, match=r"io\.delta:nothing:1 was not found; http://127.0.0.1:[0-9]+ said 404"
        ):
            ivy.fetch("no jar", [ivy.artifacts("io.delta:nothing:1")], tmp_path / "other")


def test_a_folder_of_somebodys_own_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CDCFLOW_JARS may name a folder with jars of other programs in it."""
    (tmp_path / "other.jar").write_bytes(b"")
    monkeypatch.setenv("CDCFLOW_JARS", str(tmp_path))
    with pytest.raises(Exception, match=r"run `python -m cdcflow\.spark\.jars` once"):
        jars.jars_for_session(["delta"])
    assert [path.name for path in tmp_path.iterdir()] == ["other.jar"]


def test_machine_without_java_gets_an_error_that_explains_it(tmp_path: Path) -> None:
    """Both where jars must be fetched and where they are present."""
    for more in ({}, {"CDCFLOW_JARS": str(tmp_path / "none")}):
        done = _run(["-c", START], {"JAVA_HOME": str(tmp_path / "nowhere"), **more}, tmp_path)
        assert f"there is no Java here ({tmp_path}/nowhere/bin/java is not found)" in done.stderr
        assert "install Java 17 or newer" in done.stderr
