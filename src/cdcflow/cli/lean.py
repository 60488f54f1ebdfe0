"""A daemon's process: without what it has no use for, and with memory given back once it is free."""

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
"""How long memory that is free is kept for whoever wants some next."""
LARGE_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3


class _Absent(MetaPathFinder):
    """Makes packages look as if they were not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(fullname, name=fullname)
        return None


def lean() -> None:
    """Make this process a lean one. To be called before anything of the capture is imported; `loaded` afterwards."""
    # Modules are not garbage, and there is no need to look through them again and again while they are imported.
    gc.disable()
    # numpy's linear algebra, which nothing here asks for, would start a thread for every processor but one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _large_pieces_apart()
    _giving_memory_back()
    _without_luxuries()
    sys.setswitchinterval(0.001)  # a change that has arrived shall not wait 5 ms for the thread that seals


def loaded() -> None:
    """Everything is imported: from now on garbage is collected again, but never looked for among what is here now."""
    gc.freeze()
    gc.enable()


def _large_pieces_apart() -> None:
    """Let large pieces of memory go back to the system as soon as they are free.

    glibc takes what is larger than 128 KiB straight from the system, but each such piece that is freed teaches it to
    keep pieces up to that size (32 MiB in the end) between the others, where they stay: after a large transaction
    some 50 MB. Told a size, it learns nothing (mallopt(3)).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library: it has its own ways
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def _giving_memory_back() -> None:
    """Arrow's usual allocator keeps what several threads have used in turn: some 80 MB after a large transaction.

    Its C++ parts take the one that this variable names when they are loaded; `set_memory_pool` alone reaches only what
    Python asks for.
    """
    if "pyarrow" not in sys.modules:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    import pyarrow as pa

    if "jemalloc" in pa.supported_memory_backends():
        pa.jemalloc_set_decay_ms(GIVEN_BACK_MS)
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    else:
        pa.set_memory_pool(pa.system_memory_pool())


def _without_luxuries() -> None:
    """Let pyarrow do without pandas and structlog without rich in this process, also where they are installed.

    pyarrow imports pandas with its first array, if it can: 40 MB of memory and some tenths of a second at every start,
    for conversions that a daemon never asks for. structlog imports rich for tracebacks in colour: a tenth of a second.
    What either finds out once, it keeps.
    """
    absent = _Absent(frozenset(name for name in ("pandas", "rich") if name not in sys.modules))
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow as pa
        import structlog  # noqa: F401  only to have it look round now

        pa.array([0])
    finally:
        sys.meta_path.remove(absent)
