"""Archives, and jars with a classifier, from Maven's repositories: what Spark's own resolver does not fetch.

Ivy itself does (part of pyspark, as for the other jars), from where the user's settings say.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cdcflow.errors import SourceUnavailable
from cdcflow.spark.runtime.downloads import attempts, ivy_settings
from cdcflow.spark.runtime.resolver import kind_of, reason

_MODULE = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="cdcflow" module="fetched"/>
  <dependencies>{}</dependencies>
</ivy-module>
"""
_CLASSIFIER = ' m:classifier="{}"'


def artifacts(package: str, *classifiers: str, kind: str = "jar") -> str:
    """The artifacts of a package (`group:name:version`) with these classifiers ("": the one without any), and nothing
    that it depends on."""
    group, name, version = package.split(":")
    listed = "".join(
        f'<artifact name="{name}" type="{kind}" ext="{kind}"{_CLASSIFIER.format(one) if one else ""}/>'
        for one in classifiers or ("",)
    )
    return f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">{listed}</dependency>'


def fetch(what: str, asked: Sequence[str], room: Path) -> Path:
    """A folder of `room` with these artifacts, as `name-version-classifier.ext`.

    Raises:
        SourceUnavailable: they could not be fetched.
    """
    (room / "ivy.xml").write_text(_MODULE.format("".join(asked)))
    with ivy_settings(room) as settings:
        attempts(what)(_fetch_once, what, room, settings)
    return room / "out"


def _fetch_once(what: str, room: Path, settings: Path) -> None:
    pattern = str(room / "out" / "[artifact]-[revision](-[classifier]).[ext]")
    command = [java(), "-jar", str(_ivy()), "-ivy", "ivy.xml", "-cache", str(room / "cache"), "-retrieve", pattern]
    done = subprocess.run(
        [*command, "-settings", str(settings)], cwd=room, capture_output=True, text=True, errors="replace", check=False
    )
    said = done.stdout + done.stderr
    # Ivy itself ends with 0 where an artifact is missing.
    if done.returncode != 0 or re.search(r"UNRESOLVED DEPENDENCIES|FAILED DOWNLOADS", said):
        raise kind_of(said)(f"could not fetch {what} with Ivy: {reason(said)}")


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else "java"


def pyspark_jars() -> Path:
    """The folder of the jars that pyspark contains."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceUnavailable("this needs pyspark, which contains its jars")
    return Path(spec.origin).parent / "jars"


def _ivy() -> Path:
    return next(pyspark_jars().glob("ivy-*.jar"))


__all__ = ["artifacts", "fetch", "java", "pyspark_jars"]
