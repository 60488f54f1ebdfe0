"""The list of servers that `make test-servers` goes through, and how it counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.servers.releases import RELEASES, NotToBeHad, environment
from tests.servers.run import PARTS, SUITES, main, results, table

from cdcflow.demo.servers.cached import command

ROOT = Path(__file__).parents[2]
REPORT = """
<testsuites><testsuite>
<testcase classname="tests.contracts.test_postgres_source.TestPostgres" name="a"/>
<testcase classname="tests.integration.postgres.test_row_versions" name="b[named]"><failure message="x"/></testcase>
<testcase classname="tests.integration.postgres.test_row_versions" name="c[named]"/>
<testcase classname="tests.integration.postgres_types.test_x" name="d"><error message="x"/></testcase>
</testsuite></testsuites>
"""


def test_list_has_every_version_that_is_promised() -> None:
    """A version that the pages promise and no test starts is only a promise."""
    listed = {(r.kind, r.version) for r in RELEASES}
    assert {("postgres", str(major)) for major in range(14, 20)} <= listed
    assert {("mysql", "8.0"), ("mysql", "8.4"), ("mysql", "9"), ("mariadb", "10.11"), ("mariadb", "11.8")} <= listed


def test_every_part_has_its_tests() -> None:
    """A moved path would leave a part without tests."""
    for suites in SUITES.values():
        assert tuple(suites) == PARTS
        assert all((ROOT / file).exists() for files in suites.values() for file in files)


def test_unavailable_server_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """If it were skipped silently, it would appear tested."""
    gone = [r for r in RELEASES if r.where == "nowhere"]
    for release in gone:
        with pytest.raises(NotToBeHad, match=r"no suite|not to be had"):
            environment(release)
    assert main([f"--server={release.name}" for release in gone]) == 0
    assert re.search(r"^MySQL 8\.4 +not tested: no suite of Debian", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("top", ["lib", "usr/lib"])
def test_program_of_an_older_debian_finds_its_libraries_in_both_places(tmp_path: Path, top: str) -> None:
    """Before Debian 13 the C library is in /lib: without that folder no server of that release would start or be
    tested."""
    for file in (f"{top}/x86_64-linux-gnu/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libstdc++.so.6"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    loader, option, libraries, program = command(tmp_path, "usr/sbin/mariadbd")
    assert loader == f"{tmp_path}/{top}/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    assert option == "--library-path"
    assert {f"{tmp_path}/usr/lib/x86_64-linux-gnu", f"{tmp_path}/{top}/x86_64-linux-gnu"} == {*libraries.split(":")}
    assert program == f"{tmp_path}/usr/sbin/mariadbd"


def test_failures_are_counted_by_part_and_a_part_without_tests_is_one(tmp_path: Path) -> None:
    """A run that chose nothing must not look like one that passed."""
    (tmp_path / "report.xml").write_text(REPORT.strip())
    found = results(tmp_path / "report.xml", SUITES["postgres"])
    assert found == {
        "contract": "1 passed",
        "visibility": "0 FAILED of 0",
        "DDL": "1 FAILED of 2",
        "types": "1 FAILED of 1",
    }
    assert "PostgreSQL 14     1 passed" in table({"PostgreSQL 14": found})
