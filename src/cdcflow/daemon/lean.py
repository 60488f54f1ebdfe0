"""A lean daemon process: without unused libraries, and with freed memory returned to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

GIVEN_BACK_MS = 20
"""How long freed memory is kept for reuse."""
LARGE_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3


class _Absent(MetaPathFinder):
    """Hides packages, as if they were not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(fullname, name=fullname)
        return None


def lean() -> None:
    """Make this process a lean one. Call it before anything of the capture is imported, and `end_loading` after
    that."""
    # Modules are not garbage, and need not be scanned again and again during imports.
    gc.disable()
    # numpy's linear algebra, which cdcflow does not use, would start a thread for every processor but one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _large_pieces_apart()
    _giving_memory_back()
    without_luxuries()
    sys.setswitchinterval(0.001)  # a change that has arrived must not wait 5 ms for the thread that seals


def end_loading() -> None:
    """Collect garbage again after everything is imported, but never scan the objects that exist now."""
    gc.freeze()
    gc.enable()


def _large_pieces_apart() -> None:
    """Make the allocator return large blocks of memory to the system as soon as they are freed.

    glibc takes blocks above 128 KiB straight from the system, but each such block that is freed teaches it to keep
    blocks up to that size (32 MiB in the end) between the others, where they stay: after a large transaction some 50
    MB. With a fixed threshold it does not adapt (mallopt(3)).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library, with its own rules
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def _giving_memory_back() -> None:
    """Select an allocator for Arrow that returns memory. Its usual one keeps memory that several threads have used in
    turn: some 80 MB after a large transaction.

    Its C++ parts use the allocator that an environment variable names when they are loaded; `set_memory_pool` alone
    covers only what Python allocates.
    """
    if "pyarrow" not in sys.modules:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    import pyarrow as pa

    if "jemalloc" in pa.supported_memory_backends():
        pa.jemalloc_set_decay_ms(GIVEN_BACK_MS)
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    else:
        pa.set_memory_pool(pa.system_memory_pool())


def without_luxuries() -> None:
    """Make pyarrow run without pandas and structlog without rich in this process, even if they are installed.

    pyarrow imports pandas with its first array, if it can: 40 MB of memory and some tenths of a second at every
    start, for conversions that a daemon never needs. structlog imports rich for tracebacks in colour: a tenth of a
    second. Both remember that the package was missing, so it may be imported afterwards.
    """
    absent = _Absent(frozenset(name for name in ("pandas", "rich") if name not in sys.modules))
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow as pa
        import structlog  # noqa: F401  only so that it checks for rich now

        pa.array([0])
    finally:
        sys.meta_path.remove(absent)
