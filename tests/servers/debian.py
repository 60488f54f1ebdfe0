"""Programs from a Debian package that is not installed: fetched once, unpacked into the cache, run from there.

The package and all that it depends on, down to the C library, are unpacked into the cache, without a change to the host
and without being root; the demo finds them there as well (`cdcflow.demo.servers.cached`). The sources are those
that the host's own apt is configured with; apt checks their signatures as it always does.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.servers import downloads

from cdcflow.demo.servers import cached
from cdcflow.errors import SourceUnavailable

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ("perl", "libperl", "libc-gconv", "libdb5", "libgdbm", "libudev", "gcc-")
"""Packages (by how their files' names begin) that only the scripts of a package's installation need."""


class NotToBeHad(Exception):
    """The package cannot be fetched here; the message says what is missing."""


def unpacked(package: str, suite: str) -> Path:
    """The directory that holds `package` of a Debian suite with all it depends on; fetched if it is missing.

    Raises:
        NotToBeHad: this is no Debian, or the fetch failed.
    """
    if found := cached.package_directory(package, suite):
        return found
    return _unpacked(package, suite, lambda place: _fetch(package, suite, place))


def postgres_17() -> Path:
    """The directory of all programs of PostgreSQL 17, also of those that pg_upgrade needs; from Debian's `trixie`.

    Raises:
        NotToBeHad: this is no Debian, or the fetch failed.
    """
    return _postgres("17", "trixie")


def postgres_19() -> Path:
    """The same of PostgreSQL 19, which only Debian's `experimental` has."""
    return _postgres("19", "experimental", "sid")


def _postgres(version: str, suite: str, *others: str) -> Path:
    """The programs of a version.

    Their dependencies cannot be resolved in each suite (those of perl), so the packages are named one by one. `initdb`
    starts `postgres` itself: each program is a script that starts the real one with the loader and the libraries next
    to it.
    """
    root = _unpacked(f"postgresql-{version}", suite, lambda place: _fetch_postgres(version, (suite, *others), place))
    return root / f"usr/lib/postgresql/{version}/bin"


def _unpacked(package: str, suite: str, fetch: Callable[[Path], None]) -> Path:
    place = cached.cache() / f"{package}-{suite}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_suffix(".lock")):
        if cached.package_directory(package, suite) is None:
            shutil.rmtree(place, ignore_errors=True)
            fetch(place)
    return place / "root"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process fetches; the others wait for the result."""
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


_LIBRARIES = (
    *("libc6", "libicu78", "libicu76", "libssl3t64", "libxml2-16", "libldap2", "liburing2", "libnuma1", "libzstd1"),
    *("liblz4-1", "zlib1g", "libpam0g", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0"),
    *("libcom-err2", "libkeyutils1", "libsystemd0", "libselinux1", "libpcre2-8-0", "libsasl2-2", "libaudit1"),
    *("libcap-ng0", "liblzma5", "libgcc-s1", "libstdc++6", "libuuid1", "libcap2", "libgcrypt20", "libxslt1.1"),
    *("libcrypt1", "libreadline8t64", "libtinfo6", "libedit2", "libcurl4t64", "libgpg-error0", "libbsd0", "libmd0"),
)
"""The libraries that PostgreSQL's programs are linked with; a name that the suite does not have is skipped."""


def _fetch_postgres(version: str, suites: Sequence[str], place: Path) -> None:
    package = f"postgresql-{version}"
    named = [f"{name}/{suites[0]}" for name in (package, f"postgresql-client-{version}", "libpq5")]
    with tempfile.TemporaryDirectory(prefix="cdcflow-apt-") as own:
        lines = [f"deb [signed-by={KEYRING}] {_source()} {suite} main\n" for suite in suites]
        options = _own_state(Path(own), "".join(lines))
        _run(["apt-get", *options, "--quiet", "update"], package)
        known = set(_run(["apt-cache", *options, "pkgnames"], package).split())
        wanted = [name for name in (*named, *_LIBRARIES) if name.partition("/")[0] in known]
        _run(["apt-get", *options, "download", *wanted], package, Path(own))
        (place / "root").mkdir(parents=True)
        for file in sorted(Path(own).glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(file), str(place / "root")], package)
    for unread in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(place / "root" / unread, ignore_errors=True)
    for program in sorted((place / f"root/usr/lib/postgresql/{version}/bin").iterdir()):
        _started_by_a_script(place / "root", program)
    (place / "whole").touch()


def _started_by_a_script(root: Path, program: Path) -> None:
    real = program.rename(program.with_name(f"{program.name}.real"))
    loader, option, libraries, path = cached.command(root, str(real.relative_to(root)))
    # The program finds what belongs to it by the name under which it was started.
    program.write_text(f'#!/bin/sh\nexec "{loader}" --argv0 "$0" {option} "{libraries}" "{path}" "$@"\n')
    program.chmod(0o755)


def _source() -> str:
    """The place that the host takes its own packages from."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing or not KEYRING.exists():
        raise NotToBeHad("this is no Debian, whose packages could be unpacked")
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"], "")
    sources = [line for line in listed.splitlines() if "security" not in line]
    if not sources:
        raise NotToBeHad("apt has no list of a Debian archive yet (run apt-get update once)")
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
        # A list that cannot be fetched is otherwise a warning, and the next step then does not find the package.
        "APT::Update::Error-Mode": "any",
    }
    return [part for name, value in values.items() for part in ("-o", f"{name}={value}")]


def _run(command: list[str], package: str, folder: Path | None = None) -> str:
    try:
        return downloads.run(command, f"fetching {package or 'packages'}", cwd=folder)
    except SourceUnavailable as error:
        raise NotToBeHad(str(error)) from None


__all__ = ["NotToBeHad", "postgres_17", "postgres_19", "unpacked"]
