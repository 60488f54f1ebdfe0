"""The jar that the package ships is what its sources compile to."""

from __future__ import annotations

import runpy
from pathlib import Path

BUILD = Path(__file__).parents[3] / "java" / "build.py"


def test_the_shipped_jar_is_that_of_the_sources() -> None:
    """A binary in a repository is trusted only as long as it can be rebuilt."""
    build = runpy.run_path(str(BUILD))
    compiled = build["compiled"]()
    assert {f"cdcflow/delta/{name}LogStore.class" for name in ("Conditional", "Checked")} < compiled.keys()
    assert "cdcflow/iceberg/AllocatorPlugin.class" in compiled
    assert build["shipped"]() == compiled, "run `make own-jar`"
