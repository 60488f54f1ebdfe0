"""Start Java for Spark without the lines that it prints each time, and without hiding new ones.

Lines that Java, log4j and Spark's resolver print at every start are held back. They are printed after all if the start
fails. Every other line passes at once.

                  ┌── known ──▶ held ──▶ dropped when Spark has started, printed when it could not
    Java's stderr ┤
                  └── other ──▶ stderr
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from cdcflow.errors import ConfigurationError

INSTALL_JAVA_ONLY = "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
INSTALL_JAVA = f"{INSTALL_JAVA_ONLY}; small merges need no Java: pip install 'cdcflow[local]' and merge.engine local"
_KNOWN = re.compile(
    rb"""^(
      WARNING:\ Using\ incubator\ modules:
    | Using\ Spark's\ default\ log4j\ profile:
    | Setting\ default\ log\ level\ to
    | To\ adjust\ logging\ level\ use
    | \S+\ \S+\ WARN\ Utils:\ (Your\ hostname|Set\ SPARK_LOCAL_IP)
    | \S+\ \S+\ WARN\ NativeCodeLoader:
    | ::\ (loading\ settings|resolving\ dependencies|resolution\ report|retrieving)\ ::
    | Ivy\ Default\ Cache\ set\ to:
    | The\ jars\ for\ the\ packages\ stored\ in:
    | \S+\#\S+\ added\ as\ a\ dependency
    | downloading\ \S+\ \.\.\.
    | \t(confs:|found\ |\[SUCCESSFUL|::\ modules\ in\ use|::\ evicted|\S+\#\S+\ (from|by)\ )
    | \t(-----|\|\ |\d+\ artifacts\ copied)
    )""",
    re.VERBOSE,
)


def is_known(line: bytes) -> bool:
    """Return whether every start prints this line."""
    return _KNOWN.match(line) is not None


class StartLines:
    """Forwards the output of a starting Java, except for the lines that every start prints."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._held: list[bytes] = []
        self._failed = False
        self._lock = threading.Lock()

    def pass_on(self, lines: Iterable[bytes]) -> None:
        """Forward all lines."""
        for line in lines:
            with self._lock:
                if is_known(line) and not self._failed:
                    self._held.append(line)
                else:
                    self._out.write(line)

    def tell_all(self) -> None:
        """Print the held lines: the start failed, and they may contain the reason."""
        with self._lock:
            self._failed = True
            for line in self._held:
                self._out.write(line)
            self._held.clear()


@contextmanager
def quiet_start(settings: Mapping[str, str]) -> Iterator[None]:
    """Wrap the start of a Spark session with these settings. It starts Java unless Java already runs."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    lines, write_end = _start_forwarder()
    try:
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            gateway = launch_gateway(conf, {"stderr": write_end})  # type: ignore[no-untyped-call]  # pyspark's
        finally:
            os.close(write_end)
        SparkContext._ensure_initialized(gateway=gateway)
        yield
    except BaseException as error:
        lines.tell_all()
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise no_java("starting Spark") from error
        raise


def missing_for_spark() -> str | None:
    """Return the remedy that names what must be installed before Spark can start here; `None` if nothing is missing.
    Neither pyspark nor Java is started for this check."""
    try:
        has_spark = importlib.util.find_spec("pyspark") is not None
    except ImportError:
        has_spark = False
    if not has_spark:
        return f"run `pip install 'cdcflow[spark]'`, and {INSTALL_JAVA_ONLY}"
    # Under spark-submit Java already runs.
    is_there = "PYSPARK_GATEWAY_PORT" in os.environ or shutil.which(_java()) is not None
    return None if is_there else INSTALL_JAVA_ONLY


def _java() -> str:
    return os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"


def no_java(attempted: str) -> ConfigurationError:
    """Return the error for a Java that could not be started. Its own output is already on stderr."""
    program = _java()
    if shutil.which(program) is None:
        return ConfigurationError(
            f"{attempted}: there is no Java here ({program} is not found)",
            remedy=INSTALL_JAVA,
            runbook="package-missing",
        )
    return ConfigurationError(
        f"{attempted}: {program} ended before Spark was ready (its own output is above)",
        remedy=f"fix what it reports, or {INSTALL_JAVA}",
        runbook="package-missing",
    )


def _start_forwarder() -> tuple[StartLines, int]:
    """Return the forwarder of Java's lines, and the descriptor that Java writes them to."""
    read_end, write_end = os.pipe()
    lines = StartLines(out := os.fdopen(os.dup(2), "wb", buffering=0))

    def pump() -> None:
        with out, os.fdopen(read_end, "rb") as said:
            lines.pass_on(said)

    threading.Thread(target=pump, name="cdcflow-java-stderr", daemon=True).start()
    return lines, write_end
