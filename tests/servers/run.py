"""The tests of the servers themselves, over each server that is available here: `make test-servers`.

    python tests/servers/run.py                      all of them
    python tests/servers/run.py --server mariadb     or "PostgreSQL 16"; may be repeated

Each server has a run of pytest, whose fixtures start the given program. A table comes at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.servers.releases import RELEASES, Kind, NotToBeHad, Release, environment  # noqa: E402  needs the path

POSTGRES: Mapping[str, Sequence[str]] = {
    "contract": ["tests/contracts/test_postgres_source.py"],
    "visibility": ["tests/integration/daemon/test_visibility_trap.py"],
    "DDL": [
        "tests/integration/postgres/test_row_versions.py",
        "tests/integration/postgres/test_renamed_tables.py",
        "tests/integration/daemon/test_rewritten_rows.py",
        "tests/ddlfuzz/test_servers_and_log_agree.py",
    ],
    "types": ["tests/integration/postgres_types"],
}
MYSQL: Mapping[str, Sequence[str]] = {
    "contract": ["tests/contracts/test_mysql_source.py"],
    "visibility": ["tests/integration/mysql/test_visibility_fences.py"],
    "DDL": ["tests/integration/mysql_daemon/test_statements.py", "tests/ddlfuzz/test_servers_and_log_agree.py"],
    "types": [
        "tests/integration/mysql/test_same_value_on_both_paths.py",
        "tests/integration/mysql/test_catalog_and_log.py",
    ],
}
SUITES: Mapping[Kind, Mapping[str, Sequence[str]]] = {"postgres": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL}
OTHERS: Mapping[Kind, str] = {
    "postgres": "not mysql and not mariadb",
    "mysql": "not postgres and not mariadb",
    "mariadb": "mariadb",
}
"""What pytest gets to select: tests of all three are in the same files."""
PARTS = tuple(POSTGRES)


def tested(release: Release, more: Sequence[str]) -> dict[str, str]:
    """A result for each part: how many passed, or how many failed."""
    suites = SUITES[release.kind]
    files = [file for part in suites.values() for file in part]
    with tempfile.TemporaryDirectory(prefix="cdcflow-servers-") as room:
        report = Path(room) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-k", OTHERS[release.kind]]
        command += [f"--junitxml={report}", *more, *files]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **environment(release)}, check=False)
        return results(report, suites) if report.exists() else dict.fromkeys(suites, "FAILED to begin")


def results(report: Path, suites: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What pytest's report contains about each part."""
    counted: dict[str, Counter[bool]] = {part: Counter() for part in suites}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  written by pytest a moment ago
        module = case.get("classname", "").replace(".", "/")
        bad = case.find("failure") is not None or case.find("error") is not None
        for part, files in suites.items():
            if any(module.startswith(file.removesuffix(".py")) for file in files):
                counted[part][bad] += 1
    return {
        part: f"{found[True]} FAILED of {found.total()}" if found[True] or not found else f"{found[False]} passed"
        for part, found in counted.items()
    }


def table(found: Mapping[str, Mapping[str, str] | str]) -> str:
    """Servers × parts; a text alone is the reason why a server was not tested."""
    lines = [f"{'server':<18}" + "".join(f"{part:<18}" for part in PARTS)]
    for name, result in found.items():
        said = f"not tested: {result}" if isinstance(result, str) else "".join(f"{result[p]:<18}" for p in PARTS)
        lines.append(f"{name:<18}{said}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", help="a kind (mysql) or a name (PostgreSQL 16)")
    asked, more = parser.parse_known_args(arguments)
    chosen = [r for r in RELEASES if not asked.server or r.kind in asked.server or r.name in asked.server]
    if not chosen:
        parser.error(f"no such server; there are: {', '.join(r.name for r in RELEASES)}")
    found: dict[str, Mapping[str, str] | str] = {}
    for release in chosen:
        print(f"── {release.name}", flush=True)
        try:
            found[release.name] = tested(release, more)
        except NotToBeHad as error:
            found[release.name] = str(error)
    print(table(found))
    return any("FAILED" in said for result in found.values() if not isinstance(result, str) for said in result.values())


if __name__ == "__main__":
    sys.exit(main())
