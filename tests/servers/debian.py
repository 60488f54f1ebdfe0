"""Programs from a Debian package that is not installed: fetched once, unpacked beside the system, run from there.

The package and all that it depends on, down to the C library, are unpacked into the cache, without a change to the host
and without being root; the demo finds them there as well (`cdcflow.cli.demo.servers.cached`). Where the packages come
from is what the host's own apt is set up with; apt checks their signatures as it always does.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers import downloads

from cdcflow.cli.demo.servers import cached
from cdcflow.errors import SourceUnavailable

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ("perl", "libperl", "libc-gconv", "libdb5", "libgdbm", "libudev", "gcc-")
"""Packages (by how their files' names begin) that only the scripts of a package's installation need."""


class NotToBeHad(Exception):
    """The package cannot be fetched here; the message says what is missing."""


def unpacked(package: str, suite: str) -> Path:
    """The directory that holds `package` of a Debian suite with all it depends on; fetched if it is not there yet.

    Raises:
        NotToBeHad: this is no Debian, or the fetch failed.
    """
    if found := cached.unpacked(package, suite):
        return found
    place = cached.cache() / f"{package}-{suite}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_suffix(".lock")):
        if cached.unpacked(package, suite) is None:
            shutil.rmtree(place, ignore_errors=True)
            _fetch(package, suite, place)
    return place / "root"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process fetches; the others wait for what it brings."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(package: str, suite: str, place: Path) -> None:
    source = _source()
    with tempfile.TemporaryDirectory(prefix="cdcflow-apt-") as own:
        options = _own_state(Path(own), f"deb [signed-by={KEYRING}] {source} {suite} main\n")
        _run(["apt-get", *options, "--quiet", "update"], package)
        _run(["apt-get", *options, "--yes", "--no-install-recommends", "--download-only", "install", package], package)
        root = place / "root"
        root.mkdir(parents=True)
        for file in sorted(Path(own).glob("cache/archives/*.deb")):
            if not file.name.startswith(LEFT_OUT):
                _run(["dpkg-deb", "--extract", str(file), str(root)], package)
    for unread in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / unread, ignore_errors=True)
    (place / "whole").touch()


def _source() -> str:
    """The place that the host takes its own packages from."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing or not KEYRING.exists():
        raise NotToBeHad("this is no Debian, whose packages could be unpacked")
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"], "")
    sources = [line for line in listed.splitlines() if "security" not in line]
    if not sources:
        raise NotToBeHad("apt knows no Debian archive yet (run apt-get update once)")
    return sources[0]


def _own_state(own: Path, source: str) -> list[str]:
    """Options that keep apt away from the host's lists, packages and settings of sources."""
    for directory in ("lists/partial", "cache/archives/partial", "sources.d", "preferences.d"):
        (own / directory).mkdir(parents=True)
    (own / "status").touch()
    (own / "sources.list").write_text(source)
    values = {
        "Dir::State": own,
        "Dir::State::lists": own / "lists",
        "Dir::State::status": own / "status",
        "Dir::Cache": own / "cache",
        "Dir::Etc::sourcelist": own / "sources.list",
        "Dir::Etc::sourceparts": own / "sources.d",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": own / "preferences.d",
        "APT::Sandbox::User": "",
        "Acquire::Retries": "3",
        # A list that cannot be had is otherwise a warning, and the next step then knows no such package.
        "APT::Update::Error-Mode": "any",
    }
    return [part for name, value in values.items() for part in ("-o", f"{name}={value}")]


def _run(command: list[str], package: str) -> str:
    try:
        return downloads.run(command, f"fetching {package or 'packages'}")
    except SourceUnavailable as error:
        raise NotToBeHad(str(error)) from None


__all__ = ["NotToBeHad", "unpacked"]
