"""A release: two builds have the same bytes, the wheels are for other machines, and the parts list is complete.

`make test-release` runs these tests; they take minutes, because each build compiles for every CPython here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from tests.release.build import ROOT, SBOM, SUMS, SYSTEM_LIBRARIES, pinned_dependencies
from tests.wheels.build import install_and_try, interpreters

from cdcflow.version import __version__

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]
TOOLS = Path(os.environ.get("CDCFLOW_RELEASE_TOOLS", ROOT / ".venv" / "release" / "bin"))


def release(target: Path) -> None:
    """As `make release` does it, with another folder for temporary files, whose name is longer each time."""
    with tempfile.TemporaryDirectory(prefix=f"release-{target.name}-") as room:
        command = [sys.executable, "-m", "tests.release.build", str(TOOLS), str(target)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": room}, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("first")
    release(target)
    return target


def test_second_build_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Anyone can build what was released, and compare."""
    again = tmp_path / "another-folder-with-a-longer-name"
    release(again)
    assert (again / SUMS).read_text() == (built / SUMS).read_text()


def test_sums_are_of_every_file(built: Path) -> None:
    """A file that the signed list lacks is not signed."""
    lines = [line.split("  ") for line in (built / SUMS).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built.iterdir() if path.name != SUMS}
    assert listed == files
    expected = {SBOM, f"cdcflow-{__version__}.tar.gz", f"cdcflow-chart-{__version__}.tgz"}
    assert expected <= files.keys()


def test_wheels_are_for_other_machines_and_contain_no_library_of_this_one(built: Path) -> None:
    """OpenSSL in a wheel would never be patched; a plain linux tag is refused by indexes."""
    wheels = sorted(built.glob("cdcflow-*.whl"))
    assert len(wheels) == len(interpreters())
    for wheel in wheels:
        assert re.search(r"[-.]manylinux_\d+_\d+_\w+\.whl$", wheel.name)
        names = zipfile.ZipFile(wheel).namelist()
        assert sum(name.endswith(".so") for name in names) >= 6
        assert not any(library.partition(".")[0] in name for name in names for library in SYSTEM_LIBRARIES)


def test_wheels_hold_no_path_of_this_machine(built: Path) -> None:
    """It would differ on another machine, and reveals where it was built."""
    for wheel in built.glob("*.whl"):
        archive = zipfile.ZipFile(wheel)
        for name in archive.namelist():
            assert str(ROOT).encode() not in archive.read(name), name
            assert b"/tmp/" not in archive.read(name) or not name.endswith(".so"), name


def test_wheel_captures_without_a_compiler(built: Path) -> None:
    """The wheel that is released, not one like it."""
    for version, python in interpreters().items():
        (wheel,) = built.glob(f"cdcflow-*-cp{version.replace('.', '')}-*.whl")
        assert "rows captured, compiled decoders" in install_and_try(python, wheel)


def test_sdist_has_what_a_build_needs_and_no_compiled_part(built: Path) -> None:
    """`pip install` of the sdist compiles it where there is a compiler."""
    with tarfile.open(built / f"cdcflow-{__version__}.tar.gz") as archive:
        names = archive.getnames()
    top = f"cdcflow-{__version__}"
    assert {f"{top}/{name}" for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md")} <= set(names)
    assert any(name.endswith(".pyx") for name in names)
    assert not any(name.endswith((".so", ".pyc")) for name in names)


def test_parts_list_has_every_package_that_is_installed_with_cdcflow(built: Path) -> None:
    """A vulnerable package is searched for in this list."""
    sbom = json.loads((built / SBOM).read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "cdcflow"
    parts = {f"{one['name'].lower().replace('_', '-')}=={one['version']}" for one in sbom["components"]}
    expected = set(pinned_dependencies(ROOT))
    assert expected <= parts
    assert {"pyarrow", "psycopg", "pymysql", "duckdb"} <= {one.partition("==")[0] for one in parts}
    assert not {"pytest", "ruff"} & {one.partition("==")[0] for one in parts}
