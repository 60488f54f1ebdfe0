"""Build the jar that the package ships, from the sources next to this file, or check that it was built from them.

    python java/build.py            write src/cdcflow/spark/cdcflow.jar
    python java/build.py --check    check whether that jar has what these sources compile to; 1 if not

Needs a JDK (17 or newer), pyspark, and Delta's and Iceberg's jars (`python -m cdcflow.spark.jars --iceberg`).
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from cdcflow.spark.jars import OWN_JAR, iceberg_jars, jars

SOURCES = Path(__file__).parent
BEGINNING = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the same sources give the same jar."""


def compiled() -> dict[str, bytes]:
    """The class files that the sources compile to, by their names in a jar."""
    of_spark = Path(pyspark.__file__).parent / "jars"
    classpath = [*jars(), *iceberg_jars()]
    for name in ("hadoop-client-api", "spark-core", "scala-library"):
        classpath += map(str, of_spark.glob(f"{name}*.jar"))
    with tempfile.TemporaryDirectory() as room:
        sources = sorted(map(str, SOURCES.rglob("*.java")))
        command = ["javac", "--release", "17", "-Xlint:all,-path,-classfile", "-Werror", "-d", room]
        if shutil.which("javac") is None:
            sys.exit("building the jar needs javac (Debian: apt install openjdk-17-jdk-headless)")
        subprocess.run([*command, "-cp", ":".join(classpath), *sources], check=True)  # noqa: S603  our own words
        return {p.relative_to(room).as_posix(): p.read_bytes() for p in sorted(Path(room).rglob("*.class"))}


def packed(classes: dict[str, bytes]) -> bytes:
    """A jar of these class files."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as jar:
        for name, content in {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n", **classes}.items():
            jar.writestr(zipfile.ZipInfo(name, BEGINNING), content, zipfile.ZIP_DEFLATED)
    return found.getvalue()


def shipped() -> dict[str, bytes]:
    """The class files of the shipped jar."""
    with zipfile.ZipFile(OWN_JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        OWN_JAR.write_bytes(packed(compiled()))
        return 0
    if shipped() == compiled():
        return 0
    sys.stderr.write(f"{OWN_JAR.name} is not what the sources in {SOURCES.name}/ compile to: run `make own-jar`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
