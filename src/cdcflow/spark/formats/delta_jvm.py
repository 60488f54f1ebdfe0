"""What Delta keeps in the JVM, brought over in few questions.

py4j asks the JVM once for each part of a class's name, once for each element of a collection and a dozen times more at
its end: the state of a small table took 300 questions, 0.1 s. So classes are looked up once, and what an object holds
comes as one text, the JSON that Delta itself writes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTED = "4.4."
"""Parts of Delta that are no public interface are called only where its version begins so."""


class DeltaJvm:
    """Classes and objects of Delta's, and Scala's, in one JVM."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        delta = jvm.org.apache.spark.sql.delta
        self.sessions = jvm.org.apache.spark.sql.classic.SparkSession
        self.logs = delta.DeltaLog
        self.file_names = delta.util.FileNames
        self.nothing = jvm.scala.Option.empty()
        self.paths = jvm.org.apache.hadoop.fs.Path
        self.is_tested = str(module(jvm.io.delta, "package").VERSION()).startswith(TESTED)
        self._jvm = jvm
        self._json = delta.util.JsonUtils
        self._options = jvm.scala.Option
        self._lists = jvm.java.util.ArrayList
        self._converters = jvm.scala.jdk.javaapi.CollectionConverters

    # What follows is private to Delta: only where `is_tested`.

    @functools.cached_property
    def commands(self) -> Any:
        """What its commands do with deletion vectors."""
        return module(self._jvm.org.apache.spark.sql.delta.commands, "DMLWithDeletionVectorsHelper")

    @functools.cached_property
    def bitmaps(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta.commands.DeletionVectorBitmapGenerator

    @functools.cached_property
    def write(self) -> Any:
        """The operation that a commit of appended rows names."""
        return getattr(self._jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")

    @functools.cached_property
    def merge(self) -> Any:
        return getattr(self._jvm.org.apache.spark.sql.delta, "DeltaOperations$Merge")

    @functools.cached_property
    def append(self) -> Any:
        return self._jvm.org.apache.spark.sql.SaveMode.Append

    @functools.cached_property
    def always(self) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()

    # ── values, to here and back ────────────────────────────────────────────────────────────────────────────

    def told(self, value: Any) -> Any:
        """What a Scala or Delta object holds, as JSON's dicts, lists, texts and numbers."""
        return json.loads(self._json.toJson(value, None))

    def some(self, value: Any) -> Any:
        return self._options.apply(value)

    def as_java(self, values: Any) -> Any:
        return self._converters.asJava(values)

    def as_scala(self, values: Sequence[Any]) -> Any:
        listed = self._lists()
        for value in values:
            listed.add(value)
        return self._converters.asScala(listed).toSeq()


def delta_jvm(spark: SparkSession) -> DeltaJvm:
    """Of a session's JVM."""
    return _of(spark._jvm)


@functools.lru_cache(maxsize=1)
def _of(jvm: Any) -> DeltaJvm:
    return DeltaJvm(jvm)


def module(package: Any, name: str) -> Any:
    """A singleton of Scala's."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


__all__ = ["TESTED", "DeltaJvm", "delta_jvm", "module"]
