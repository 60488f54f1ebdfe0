"""Where the suites are fetched from: the host's own package archive, unpacked into the cache and left there."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential
from tests.servers import debian

from cdcflow.demo.servers.cached import cache

SUITES = {
    "mariadb": ("mariadb-test-data", "usr/share/mariadb/mariadb-test"),
    "mysql": ("mysql-testsuite", "usr/lib/mysql-test"),
}
"""The package of each server's suite, and where its tests are in it."""
OLDER = {"mariadb": "usr/share/mysql/mysql-test"}
REGRESS = {"15": "bookworm", "17": "trixie", "18": "sid", "19": "experimental"}
"""The releases of the distribution that have PostgreSQL's source, by its major version."""
PARTS = ("t", "main", "include", "std_data", "suite", "common")
"""Folders of a suite that are kept: the rest is programs and expected results."""
_patiently = retry(
    retry=retry_if_exception_type(debian.NotToBeHad),
    stop=stop_after_attempt(4),
    wait=wait_exponential(multiplier=1, max=20),
    reraise=True,
)


def tests_of(flavor: str, release: str) -> Path:
    """The tests of a server's own suite, from a release of the distribution (`sid`, `bookworm`).

    Raises:
        NotToBeHad: the package cannot be fetched here.
    """
    package, inner = SUITES[flavor]
    place = cache() / f"{package}-{release}"
    _once(place, lambda: _unpack_tests(package, release, place))
    found = place / inner
    return found if found.is_dir() else place / OLDER[flavor]


def regress(version: str) -> Path:
    """The folder `src/test/regress` of the source of a major version of PostgreSQL.

    Raises:
        NotToBeHad: the source cannot be fetched here.
    """
    release = _release_of(version)
    package = f"postgresql-{version}"
    place = cache() / f"{package}-source-{release}"
    _once(place, lambda: _unpack_regress(package, release, place))
    return place / "regress"


def headers(version: str) -> Path:
    """The folder of the headers that a library in C for a major version of PostgreSQL needs.

    Raises:
        NotToBeHad: they cannot be fetched here.
    """
    release = _release_of(version)
    package = f"postgresql-server-dev-{version}"
    place = cache() / f"{package}-{release}"
    _once(place, lambda: _unpack_headers(package, release, place))
    return place / "usr/include/postgresql" / version / "server"


def _release_of(version: str) -> str:
    if version not in REGRESS:
        raise debian.NotToBeHad(f"no release of the distribution has the source of PostgreSQL {version}")
    return REGRESS[version]


def _once(place: Path, make: Callable[[], None]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with debian._locked(place.with_suffix(".lock")):
        if not (place / "whole").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make()
            (place / "whole").touch()


@_patiently
def _unpack_tests(package: str, release: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cdcflow-apt-", dir=place.parent) as own:
        options = debian._own_state(Path(own), f"{_source('deb', release)}")
        debian._run(["apt-get", *options, "--quiet", "update"], package)
        _run_in(Path(own), ["apt-get", *options, "download", package], package)
        for file in Path(own).glob("*.deb"):
            unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE)
            with tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive:
                archive.extractall(place, members=(m for m in archive if _is_kept(m.name)), filter="data")
            unpacked.wait()


@_patiently
def _unpack_regress(package: str, release: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cdcflow-apt-", dir=place.parent) as own:
        options = debian._own_state(Path(own), _source("deb-src", release))
        debian._run(["apt-get", *options, "--quiet", "update"], package)
        _run_in(Path(own), ["apt-get", *options, "source", "--download-only", package], package)
        found = next(Path(own).glob("*.orig.tar.*"), None)
        if found is None:
            raise debian.NotToBeHad(f"the source of {package} has no archive")
        with tarfile.open(found) as archive:
            for member in archive:
                _, _, rest = member.name.partition("/src/test/regress/")
                inner = f"regress/{rest}" if rest else ""
                if not inner and (rest := member.name.partition("/contrib/spi/")[2]):
                    inner = f"spi/{rest}"
                if inner and (member.isfile() or member.isdir()):
                    archive.extract(member.replace(name=inner, deep=False), place, filter="data")


@_patiently
def _unpack_headers(package: str, release: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cdcflow-apt-", dir=place.parent) as own:
        options = debian._own_state(Path(own), _source("deb", release))
        debian._run(["apt-get", *options, "--quiet", "update"], package)
        _run_in(Path(own), ["apt-get", *options, "download", package], package)
        for file in Path(own).glob("*.deb"):
            debian._run(["dpkg-deb", "--extract", str(file), str(place)], package)


def _is_kept(name: str) -> bool:
    parts = name.removeprefix("./").split("/")
    for inner in (*(path for _, path in SUITES.values()), *OLDER.values()):
        depth = len(inner.split("/"))
        if "/".join(parts[:depth]) == inner:
            return len(parts) > depth and parts[depth] in PARTS and "r" not in parts[depth + 1 : -1]
    return False


def _source(kind: str, release: str) -> str:
    return f"{kind} [signed-by={debian.KEYRING}] {debian._source()} {release} main\n"


def _run_in(folder: Path, command: list[str], package: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise debian.NotToBeHad(f"fetching {package} with {command[0]} failed: {said[-1] if said else ''}")


__all__ = ["REGRESS", "headers", "regress", "tests_of"]
