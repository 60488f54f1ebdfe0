"""Spark's own resolver (Ivy), asked for packages in a process of its own, and its pages put into one sentence.

It works while Java starts, so it needs a Java that does nothing else; a session that runs here is not touched.

    python -m cdcflow.spark.resolver ROOM PACKAGES LEFT_OUT       what `resolve` runs
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cdcflow.errors import SourceUnavailable
from cdcflow.spark.java import no_java

_NOT_FOUND = re.compile(r"^\s*:: (\S+#\S+): (?:not found|.*)$", re.MULTILINE)
_REFUSED = re.compile(r"Server access error at url (\S+) \((.*)\)")
_NO_HOST = re.compile(r"Host (\S+) not found\.")
_SECRET = re.compile(r"//[^/@\s]*@")
_TOO_OLD = ("UnsupportedClassVersionError", "JAVA_HOME is not set", "java: not found", "java: No such file")
REMEDY = (
    "check the network; a mirror: DEFAULT_ARTIFACT_REPOSITORY=https://… or an Ivy settings file in"
    " CDCFLOW_IVY_SETTINGS; without a network: put the jars into the folder that CDCFLOW_JARS names"
)


def resolve(packages: Sequence[str], left_out: Sequence[str], room: Path) -> None:
    """Have the packages, and all that they need but for what is left out, put into `room`/ivy/jars.

    Raises:
        SourceUnavailable: the resolver could not get them; the message says what it asked and was answered.
        ConfigurationError: there is no Java that could run it.
    """
    command = [sys.executable, "-m", "cdcflow.spark.resolver", str(room), ",".join(packages), ",".join(left_out)]
    # Where the child looks for this package is where it was found here.
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603  our own module
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if any(text in said for text in _TOO_OLD):
        raise no_java(f"fetching {packages[0]} with Spark's resolver")
    raise SourceUnavailable(
        f"fetching {packages[0]} with Spark's resolver: {reason(said)}", remedy=REMEDY, runbook="package-missing"
    )


def reason(said: str) -> str:
    """Why it failed, in a line, of what the resolver printed. Passwords in addresses are left out."""
    missing = sorted({name.replace("#", ":").replace(";", ":") for name in _NOT_FOUND.findall(said)})
    answers = dict.fromkeys(f"{_server(url)} said {_short(text)}" for url, text in _REFUSED.findall(said))
    hosts = dict.fromkeys(f"no address of {host}" for host in _NO_HOST.findall(said))
    parts = [*(f"{name} was not found" for name in missing[:3]), *list(answers)[:3], *list(hosts)[:3]]
    if len(missing) > 3:
        parts.insert(3, f"and {len(missing) - 3} more")
    return "; ".join(parts) or _SECRET.sub("//", _last_line(said))


def _server(url: str) -> str:
    return "/".join(_SECRET.sub("//", url).split("/")[:3])


def _short(text: str) -> str:
    return _SECRET.sub("//", text.removeprefix("java.net.").removeprefix("javax.net.ssl."))[:200]


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return (lines[-1] if lines else "it said nothing")[:300]


def main(arguments: Sequence[str]) -> int:
    """The child: start Java with these packages, and end it."""
    from pyspark.sql import SparkSession

    room, packages, left_out = arguments
    builder = (
        SparkSession.builder.master("local[1]")
        .appName("cdcflow jars")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", packages)
        .config("spark.jars.excludes", left_out)
        .config("spark.jars.ivy", str(Path(room) / "ivy"))
        .config("spark.sql.warehouse.dir", str(Path(room) / "warehouse"))
    )
    settings = os.environ.get("CDCFLOW_IVY_SETTINGS")
    if settings:
        builder = builder.config("spark.jars.ivySettings", settings)
    builder.getOrCreate().stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
