"""Writes the archives of this folder with another version of cdcflow: `python -m tests.stored.write TREE KIND…`.

TREE is a checkout with its own environment (`.venv`). The servers are those of the tests. An archive has the
files as that version left them after a SIGKILL of its daemon, what its commands print of them (`answers.json`), and its
version and commit (`written.json`). A kind that exists is replaced.

The archives in this folder were written by the last commit before the packages were rearranged. They stay for as long
as a log of that time may exist somewhere; archives of a later version get other names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.stored import kinds
from tests.stored.pipelines import Pipeline

HERE = Path(__file__).parent


def packed(kind: str, pipeline: Pipeline, tree: Path) -> None:
    """Write the archive of a kind."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True, check=True)
    written = {"version": pipeline.run("--version").strip(), "commit": asked.stdout.strip()}
    for name, value in {"written": written, "answers": pipeline.answers, "executed": pipeline.executed}.items():
        (pipeline.folder / f"{name}.json").write_text(json.dumps(value, indent=0) + "\n")
    pipeline.close()
    archive = HERE / f"{kind}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(pipeline.folder.rglob("*")):
            if not path.is_socket():
                tar.add(path, path.relative_to(pipeline.folder), recursive=False, filter=_without_owner)
    print(f"{archive.name}: {archive.stat().st_size} bytes")


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


KINDS: dict[str, Callable[[Path, Path], Pipeline]] = {
    "postgres": kinds.postgres,
    "mysql": kinds.mysql,
    "mariadb": kinds.mariadb,
    "objects": kinds.objects,
    "kafka": kinds.kafka,
    "serve": kinds.serve,
    "warehouses-local": kinds.warehouses_local,
    "warehouses-spark": kinds.warehouses_spark,
    "settings": kinds.settings,
    "spools": kinds.spools,
    "spools-mysql": kinds.spools_mysql,
}


def main(arguments: Sequence[str]) -> None:
    tree = Path(arguments[0]).resolve()
    for kind in arguments[1:]:
        with tempfile.TemporaryDirectory(prefix="cdcflow-stored-") as place:
            packed(kind, KINDS[kind](tree, Path(place) / kind), tree)


if __name__ == "__main__":
    main(sys.argv[1:])
