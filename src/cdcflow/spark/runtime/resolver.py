"""Run Spark's own resolver (Ivy) in a separate process, and summarize its pages of output in one sentence.

Ivy works while Java starts, so it needs a dedicated Java; a session that runs in this process is not touched.

    python -m cdcflow.spark.runtime.resolver ROOM PACKAGES LEFT_OUT SETTINGS       what `resolve` runs

Files that arrived whole stay in `ROOM`, so a repeated attempt requests only the rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from cdcflow.errors import SourceUnavailable
from cdcflow.spark.runtime.downloads import NotPublished, attempts, ivy_settings
from cdcflow.spark.runtime.java import no_java

_NOT_FOUND = re.compile(r"^\s*:: (\S+#\S+): (?:not found|.*)$", re.MULTILINE)
_NOT_LOADED = re.compile(r"^\s*:: (\S+#[^!\s]+)!\S+$", re.MULTILINE)
_REFUSED = re.compile(r"Server access error at url (\S+) \((.*)\)")
_FAILED = re.compile(r"SERVER ERROR: (.*) url=(\S+)")
_NO_HOST = re.compile(r"Host (\S+) not found\.")
_TRIED = re.compile(r"^\s+(https?://\S+)$", re.MULTILINE)
_SECRET = re.compile(r"//[^/@\s]*@")
_TOO_OLD = ("UnsupportedClassVersionError", "JAVA_HOME is not set", "java: not found", "java: No such file")
REMEDY = (
    "check the network; a mirror: DEFAULT_ARTIFACT_REPOSITORY=https://… or an Ivy settings file in"
    " CDCFLOW_IVY_SETTINGS; without a network: copy the jars into the folder that CDCFLOW_JARS names"
)


def resolve(packages: Sequence[str], left_out: Sequence[str], room: Path) -> None:
    """Fetch the packages and all of their dependencies, except the ones in `left_out`, into `room`/ivy/jars.

    Raises:
        SourceUnavailable: the resolver could not get them; the message contains its requests and the answers.
        ConfigurationError: there is no Java that could run it.
    """
    with ivy_settings(room) as settings:
        attempts(packages[0])(_resolve_once, packages, left_out, room, settings)


def _resolve_once(packages: Sequence[str], left_out: Sequence[str], room: Path, settings: Path) -> None:
    asked = [str(room), ",".join(packages), ",".join(left_out), str(settings)]
    command = [sys.executable, "-m", "cdcflow.spark.runtime.resolver", *asked]
    # The child imports this package from the same place as this process.
    here = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603  cdcflow's own module
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if any(text in said for text in _TOO_OLD):
        raise no_java(f"fetching {packages[0]} with Spark's resolver")
    raise kind_of(said)(
        f"fetching {packages[0]} with Spark's resolver: {reason(said)}", remedy=REMEDY, runbook="package-missing"
    )


def kind_of(said: str) -> type[SourceUnavailable]:
    """Return the class of the error: `NotPublished` if the server itself answered that it has no such file, so that
    another attempt makes no sense. `said`: the resolver's output."""
    troubled = _REFUSED.search(said) or _FAILED.search(said) or _NO_HOST.search(said)
    tried = _TRIED.findall(said)
    is_final = tried and not troubled and all(_answer(url).startswith(("404 ", "410 ")) for url in tried[:3])
    return NotPublished if is_final else SourceUnavailable


def reason(said: str) -> str:
    """Summarize in one line, from the resolver's output, which packages failed and what their servers answered.
    Passwords in addresses are removed."""
    names = [*_NOT_FOUND.findall(said), *_NOT_LOADED.findall(said)]
    missing = sorted({name.replace("#", ":").replace(";", ":") for name in names})
    answers = [f"{_server(url)} said {_short(text)}" for url, text in _REFUSED.findall(said)]
    answers += [f"{_server(url)} said {_short(text)}" for text, url in _FAILED.findall(said)]
    answers += [f"no address of {host}" for host in _NO_HOST.findall(said)]
    if missing and not answers:
        answers = [f"{_server(url)} said {_answer(url)}" for url in _TRIED.findall(said)[:3]]
    parts = [f"{name} was not found" for name in missing[:3]]
    if len(missing) > 3:
        parts.append(f"and {len(missing) - 3} more")
    return "; ".join([*parts, *list(dict.fromkeys(answers))[:3]]) or _SECRET.sub("//", _last_line(said))


def _answer(url: str) -> str:
    """Request a file from its server, and return the server's answer: the resolver does not print "too many requests",
    or "not allowed"."""
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310  http or https, of the resolver's own
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  as above
            return f"{answer.status} {answer.reason} (the answer to a repeated request)"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return _short(str(getattr(error, "reason", error)))


def _server(url: str) -> str:
    return "/".join(_SECRET.sub("//", url).split("/")[:3])


def _short(text: str) -> str:
    return _SECRET.sub("//", text.removeprefix("java.net.").removeprefix("javax.net.ssl."))[:200]


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return (lines[-1] if lines else "it said nothing")[:300]


def main(arguments: Sequence[str]) -> int:
    """Run in the child process: start Java with these packages, and end it."""
    from pyspark.sql import SparkSession

    room, packages, left_out, settings = arguments
    builder = (
        SparkSession.builder.master("local[1]")
        .appName("cdcflow jars")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", packages)
        .config("spark.jars.excludes", left_out)
        .config("spark.jars.ivy", str(Path(room) / "ivy"))
        .config("spark.jars.ivySettings", settings)
        .config("spark.sql.warehouse.dir", str(Path(room) / "warehouse"))
    )
    builder.getOrCreate().stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
