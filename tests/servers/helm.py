"""Helm, for the tests of the chart: found on PATH, otherwise built once into the user's cache.

`python -m tests.servers.helm` prints where the program is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from tests.servers import downloads

VERSION = "v3.21.4"
MODULE = "helm.sh/helm/v3/cmd/helm"
BUILT_WITHIN_S = 1500


@cache
def helm() -> Path:
    """The program. Raises LookupError if it is not here, and there is no Go to build it with."""
    found, go = shutil.which("helm"), shutil.which("go")
    program = _cache() / "helm" / VERSION / "helm"
    if found is not None:
        return Path(found)
    if go is None and not program.exists():
        raise LookupError("helm is not on PATH, and there is no Go to build it with: install one of them")
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            environment = {**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-mod=mod -trimpath"}
            command = [str(go), "install", f"{MODULE}@{VERSION}"]
            downloads.run(command, "building helm", env=environment, timeout_s=BUILT_WITHIN_S)
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdcflow"


if __name__ == "__main__":
    try:
        print(helm())
    except LookupError as error:
        sys.exit(str(error))
