"""Delta's classes and objects in the JVM (see `runtime.jvm`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdcflow.spark.runtime.jvm import Jvm, module, once
from cdcflow.spark.runtime.sessions import FAST_DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTED = "4.4."
"""The beginning of the versions of Delta whose private classes cdcflow is tested with, and uses."""


class DeltaJvm(Jvm):
    """Delta's and Scala's classes and objects in the JVM."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        super().__init__(jvm)
        delta = jvm.org.apache.spark.sql.delta
        self.logs = delta.DeltaLog
        self.file_names = delta.util.FileNames
        self.nothing = jvm.scala.Option.empty()
        self.paths = jvm.org.apache.hadoop.fs.Path
        self._version = str(module(jvm.io.delta, "package").VERSION())
        self._json = delta.util.JsonUtils
        self._options = jvm.scala.Option
        self._lists = jvm.java.util.ArrayList
        self._converters = jvm.scala.jdk.javaapi.CollectionConverters

    @property
    def is_tested(self) -> bool:
        """Whether this version of Delta is tested, so that the private parts that the following properties use may be
        called."""
        return self._version.startswith(TESTED)

    @functools.cached_property
    def commands(self) -> Any:
        """Delta's functions for deletion vectors in its commands."""
        return module(self.jvm.org.apache.spark.sql.delta.commands, "DMLWithDeletionVectorsHelper")

    @functools.cached_property
    def bitmaps(self) -> Any:
        return self.jvm.org.apache.spark.sql.delta.commands.DeletionVectorBitmapGenerator

    @functools.cached_property
    def write(self) -> Any:
        """Delta's object for the operation that a commit of appended rows names."""
        return getattr(self.jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")

    @functools.cached_property
    def merge(self) -> Any:
        return getattr(self.jvm.org.apache.spark.sql.delta, "DeltaOperations$Merge")

    @functools.cached_property
    def optimize(self) -> Any:
        """Delta's object for the operation that a commit of rewritten files names."""
        return getattr(self.jvm.org.apache.spark.sql.delta, "DeltaOperations$Optimize")

    @functools.cached_property
    def _actions(self) -> Any:
        return module(self.jvm.org.apache.spark.sql.delta.actions, "Action")

    @functools.cached_property
    def append(self) -> Any:
        return self.jvm.org.apache.spark.sql.SaveMode.Append

    @functools.cached_property
    def always(self) -> Any:
        return self.jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()

    # ── conversion of values from and to Scala ────────────────────────────────────────────────────────────────

    def content_of(self, value: Any) -> Any:
        """Return the content of a Scala or Delta object, as JSON's dicts, lists, texts and numbers."""
        return json.loads(self._json.toJson(value, None))

    def without_data_change(self, added: Any) -> Any:
        """Return the action that adds a file with rows that were in other files of the table before."""
        told = json.loads(added.json())
        told["add"]["dataChange"] = False
        return self._actions.fromJson(json.dumps(told))

    def some(self, value: Any) -> Any:
        return self._options.apply(value)

    def elements(self, values: Any) -> list[Any]:
        """Return the elements of a Scala sequence."""
        array = self._converters.asJava(values).toArray()
        return [array[number] for number in range(len(array))]

    def as_scala(self, values: Sequence[Any]) -> Any:
        listed = self._lists()
        for value in values:
            listed.add(value)
        return self._converters.asScala(listed).toSeq()


delta_jvm = once(DeltaJvm)


def is_fast(spark: SparkSession) -> bool:
    """Return whether this session may change and read rows through Delta's private classes (`merge.fast_delta`)."""
    return spark.conf.get(FAST_DELTA, "true") == "true" and delta_jvm(spark).is_tested
