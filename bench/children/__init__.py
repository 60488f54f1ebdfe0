"""Programs that run in separate processes: each takes one JSON object as its argument and prints one as its last line.

The clock of each runs from before its first connection. Nothing here imports the rest of the benchmarks: what a child
imports is in its memory. For the same reason pandas is hidden: pyarrow loads it wherever it is installed, and where a
daemon is installed it is not (Spark's extra brings it here).
"""

import sys
from collections.abc import Sequence


class _NoPandas:
    """Finds nothing, but raises for pandas before any other finder is tried."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"{name} is hidden from the benchmarks", name=name)


if sys.argv[:1] == ["-m"]:  # so while `python -m bench.children.…` looks for its module, not where one is imported
    sys.meta_path.insert(0, _NoPandas)
