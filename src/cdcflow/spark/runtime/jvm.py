"""Look up a JVM's classes once, and transfer the content of its objects in few calls.

py4j calls the JVM once for each part of a class's name, once for each element of a collection and a dozen times more at
its end: a live view of one small table took 800 to 1,100 calls. So classes are looked up once, and an object's content
is transferred as one text, which leaves 200.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jvm:
    """The part of the JVM that all formats need."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        self.jvm = jvm
        self._sessions = jvm.org.apache.spark.sql.classic.SparkSession

    def active(self, spark: SparkSession) -> Any:
        """Return the JVM's session for `spark`, and make it the thread's active one: formats look up settings and
        catalogs in the active session."""
        session: Any = spark._jsparkSession
        self._sessions.setActiveSession(session)
        return session


Parts = TypeVar("Parts", bound=Jvm)


def once(kind: Callable[[Any], Parts]) -> Callable[[SparkSession], Parts]:
    """Return a function that returns an object of this kind for a session's JVM, which is created only once."""
    made = functools.lru_cache(maxsize=1)(kind)
    return lambda spark: made(spark._jvm)


def module(package: Any, name: str) -> Any:
    """Return a Scala singleton."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
