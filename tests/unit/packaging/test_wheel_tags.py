"""The name of a wheel: for one platform only if something in it was compiled for one.

The real setup.py runs; a module replaces Cython and gives a small C file for each extension.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CYTHON = """
def cythonize(extensions, **options):
    for extension in extensions:
        extension.sources = ["tiny.c"]
    return extensions
"""
TINY = """
#include <Python.h>
static struct PyModuleDef tiny = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&tiny); }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package with one extension, built by cdcflow's setup.py."""
    package = tmp_path / "src" / "cdcflow"
    package.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text('__version__ = "1.0"\n')
    (package / "tiny.pyx").write_text("")
    (tmp_path / "tiny.c").write_text(TINY)
    (tmp_path / "Cython").mkdir()
    (tmp_path / "Cython" / "__init__.py").write_text("")
    (tmp_path / "Cython" / "Build.py").write_text(CYTHON)
    return tmp_path


def _wheel(project: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", "dist"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        check=True,
    )
    (made,) = (project / "dist").iterdir()
    return made


def test_a_wheel_without_anything_compiled_is_for_every_platform(project: Path) -> None:
    """Tagged for one platform it would be refused on all others, and gain nothing."""
    made = _wheel(project, CC="/bin/false")
    assert made.name == "cdcflow-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made) as archive:
        assert "Root-Is-Purelib: true" in archive.read("cdcflow-1.0.dist-info/WHEEL").decode()
        assert "cdcflow/__init__.py" in archive.namelist()


def test_a_wheel_with_something_compiled_is_for_its_platform(project: Path) -> None:
    """A compiled module of one Python breaks under every other."""
    made = _wheel(project)
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in made.name
    with zipfile.ZipFile(made) as archive:
        assert [name for name in archive.namelist() if name.startswith("cdcflow/tiny.") and name.endswith(".so")]
