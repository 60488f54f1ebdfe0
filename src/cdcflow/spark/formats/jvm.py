"""A JVM's classes, looked up once, and what its objects hold, brought over in few questions.

py4j asks the JVM once for each part of a class's name, once for each element of a collection and a dozen times more at
its end: what a small table is took 300 questions, 0.1 s. So classes are looked up once, and what an object holds comes
as one text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jvm:
    """What all formats need of it."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        self.jvm = jvm
        self._sessions = jvm.org.apache.spark.sql.classic.SparkSession
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def active(self, spark: SparkSession) -> Any:
        """The session there, the thread's active one from now on: formats look up settings and catalogs in that."""
        session: Any = spark._jsparkSession
        self._sessions.setActiveSession(session)
        return session

    def map(self, value: Any) -> dict[str, str]:
        """A map of texts of Java's."""
        found: dict[str, str] = json.loads(self._mapper.writeValueAsString(value))
        return found


Parts = TypeVar("Parts", bound=Jvm)


def once(kind: Callable[[Any], Parts]) -> Callable[[SparkSession], Parts]:
    """A function that gives the parts of a kind in a session's JVM, made once."""
    made = functools.lru_cache(maxsize=1)(kind)
    return lambda spark: made(spark._jvm)


def module(package: Any, name: str) -> Any:
    """A singleton of Scala's."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


__all__ = ["Jvm", "module", "once"]
