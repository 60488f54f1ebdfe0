"""Separate environments with packages of schedulers and of MCP: they do not get along with each other.

Each is created once, in the folder `schedulers` of this checkout's environment (`make test-schedulers`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.readers import DUCKDB

ROOT = Path(__file__).parents[2]
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "airflow": ("apache-airflow-core==3.3.2", "apache-airflow-task-sdk==1.3.2"),
    "dagster": ("dagster==1.13.28",),
    "mcp": ("mcp==2.3.0",),
    "dbt": ("dbt-core==1.11.16", "dbt-duckdb==1.11.1", f"duckdb=={DUCKDB}", f"duckdb-extension-delta=={DUCKDB}"),
}
"""By kind: what is installed from the index."""
PLUGINS = {"airflow": "cdcflow-airflow", "dagster": "cdcflow-dagster", "mcp": "cdcflow-mcp"}
CDCFLOW = Path(sys.executable).parent / "cdcflow"


def python_of(kind: str) -> Path:
    """The interpreter of an environment, which is created if it is missing."""
    folder = Path(sys.prefix) / "schedulers" / kind
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = " ".join(PACKAGES[kind])
    if not done.exists() or done.read_text() != wanted:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[kind]])
        done.write_text(wanted)
    return python


def environment_of(kind: str, home: Path) -> dict[str, str]:
    """Variables for a process in an environment: the plug-in's sources, and a home for what the scheduler stores."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DAGSTER", "DBT"))}
    paths = [str(ROOT / "plugins" / PLUGINS[kind] / "src")] if kind in PLUGINS else []
    homes = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DAGSTER_HOME": str(home),
        "HOME": str(home),
    }
    return {**kept, **homes, "PYTHONPATH": os.pathsep.join(paths), "CDCFLOW": str(CDCFLOW)}


def _run(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_CONSTRAINT")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for each in PACKAGES:
        print(f"{each}: {python_of(each)}", flush=True)
