"""Programs that `make demo` or `make servers` of a checkout fetched: where they are, and how to start one.

A program of a Debian package is in a separate directory with all that the package depends on, down to the C library,
and is started by that directory's own loader. So a newer release than the host's can run on the host.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Return the folder for fetched programs: the user's cache; for root, a folder that other users can read."""
    if os.geteuid() == 0:
        return Path("/var/cache/cdcflow")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdcflow"


def package_directory(package: str, suite: str) -> Path | None:
    """Return the directory that holds `package` of a Debian suite with all it depends on; `None` if it is not in the
    cache."""
    place = cache() / f"{package}-{suite}"
    # The file is written last: without it, a fetch was interrupted.
    return place / "root" if (place / "whole").exists() else None


def command(root: Path, program: str) -> tuple[str, ...]:
    """Return the command that starts a program of an unpacked package (`usr/sbin/mysqld`)."""
    # Packages from before Debian 13 have the C library in /lib, and other libraries in /usr/lib.
    libraries = [path for top in ("usr/lib", "lib") for path in sorted((root / top).glob("*-linux-gnu*"))]
    loader = next(path for directory in libraries for path in sorted(directory.glob("ld-linux*.so.*")))
    return (str(loader), "--library-path", ":".join(map(str, libraries)), str(root / program))
