"""Classify errors of Spark, Delta and Iceberg for the table at which they occurred.

Their texts are pages of Java, and may contain a row's values, so only their classes, Spark's own error conditions, and
the path of a file are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from cdcflow.tables.job.failures import kinds, of_system
from cdcflow.tables.port import Failure

_CAUSES_MAX = 20
_GONE = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext has been shutdown|OutOfMemoryError"
    r"|Answer from Java side is empty|Master removed our application|all masters are unresponsive"
)
"""Texts of errors which mean that the session is unusable, whatever table is merged."""

_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_REFUSED = re.compile(r"Permission denied|Read-only file system|AccessControlException|AccessDeniedException")
_DAMAGED = re.compile(
    r"FAILED_READ_FILE|FILE_NOT_EXIST|PATH_NOT_FOUND|FileNotFoundException|NoSuchFileException"
    r"|iceberg\.exceptions\.(NotFoundException|RuntimeIOException)|is not a Parquet file|ParquetDecodingException"
    r"|JsonParseException|JsonMappingException|JsonProcessingException|JsonEOFException|MismatchedInputException"
    r"|EOFException|AvroRuntimeException|InvalidAvroMagicException|Not a data file|ZipException|ChecksumException"
    r"|SnappyError|ZstdIOException|ZstdException|DELTA_(CHECKPOINT|CORRUPT|CHECKSUM|DELETION_VECTOR|FILE_NOT_FOUND"
    r"|LOG_FILE|MISSING_(PART_)?FILES|MISSING_TRANSACTION|STATE_RECOVER|TRUNCATED|VERSIONS_NOT)\w*|DeltaIllegalStateException"
    r"|SQLITE_(CORRUPT|NOTADB)"
)
_PATHS = (
    re.compile(r"(?:(?:file|s3a?|hdfs|abfss?|gs):|(?<![\w:/]))/[^\n'\"]*?\.(?:parquet|json|avro|crc|bin|db)\b"),
    re.compile(r"(?:file|s3a?|hdfs|abfss?|gs):/[^\s'\"\])>,;]*[^\s'\"\])>,;:.]"),
)
"""Patterns for paths in Java's texts: first of files, then of folders. A path of a file ends with its suffix, so it
may contain spaces; without a suffix a space ends the path."""


def of_spark(error: Exception) -> Failure | None:
    """Return what an error of Spark means (see `cdcflow.tables.port.Engine.failure`)."""
    try:
        chain = list(_chain(error))
    except Exception:  # noqa: BLE001  whatever the error is: the JVM no longer answers
        return None
    told = "\n".join(f"{kind}: {text}" for kind, text in chain)
    if _GONE.search(told) or (not chain and _is_lost(error)):
        return None
    what, place = _what(error, chain), _place([text for _, text in reversed(chain)])
    if _FULL.search(told):
        return Failure("full", what, place)
    if _REFUSED.search(told):
        return Failure("refused", what, place)
    if _DAMAGED.search(told):
        return Failure("damaged", what, place)
    return of_system(error) or Failure("fault", what, place)


def _is_lost(error: Exception) -> bool:
    """Return whether the connection to the JVM was lost."""
    return type(error).__name__ in ("Py4JNetworkError", "ConnectionRefusedError", "BrokenPipeError")


def _chain(error: Exception) -> Iterator[tuple[str, str]]:
    """Yield the classes and texts of Java's errors, starting at the outermost; nothing if it is not a Java error."""
    found: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(_CAUSES_MAX):
        if found is None:
            return
        yield str(found.getClass().getName()), str(found.getMessage())
        found = found.getCause()


def _what(error: Exception, chain: list[tuple[str, str]]) -> str:
    condition = _condition(error)
    classes = [kind.rpartition(".")[2] for kind, _ in chain]
    told = [condition] if condition else []
    told += classes[-1:] if classes and classes[-1] not in told else []
    at = kinds(error)
    return ", ".join([*told, at.partition(" in ")[2]]) if told else at


def _condition(error: Exception) -> str:
    """Return Spark's own name for the error."""
    asked = getattr(error, "getCondition", None)
    found = asked() if asked is not None else None
    return str(found) if found else ""


def _place(texts: Sequence[str]) -> str:
    """Return the file that the innermost error names, without its scheme if it is on this machine. `texts`: those of
    the errors, the innermost first, because an outer one may name the table that was to be written."""
    for pattern in _PATHS:
        for text in texts:
            if found := pattern.search(text):
                return unquote(re.sub(r"^file:/+", "/", found[0]))
    return ""


def first_line(error: Exception) -> str:
    """Return the first line of a Java error, without its stack. Neither of the two contains a key."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.removeprefix(": ") for line in lines if "Exception" in line), lines[0] if lines else "no reason")
    return said[:300]
