"""`make wheels`: a wheel for each CPython that this machine has, installed and tried where there is nothing else.

build     pip wheel, in a separate environment, with whatever compiler there is
install   into a fresh environment, from wheels only, with no compiler and no Java in reach
try       cdcflow --version · cdcflow init · a capture from the source in memory (smoke.py)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def interpreters() -> dict[str, Path]:
    """By version: the first program that is this CPython and runs; a name on PATH may be an empty promise."""
    found: dict[str, Path] = {}
    for version in VERSIONS:
        for program in _candidates(version):
            if _is(program, version):
                found[version] = program
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    for base in (os.environ.get("PYENV_ROOT", "~/.pyenv"), "~/.local/share/uv/python"):
        for tree in ("versions", "."):
            yield from sorted((Path(base).expanduser() / tree).glob(f"*{version}*/bin/python{version}"))


def _is(program: Path, version: str) -> bool:
    if not program.exists():
        return False
    told = "import sys, venv, ensurepip; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", told], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.split() == ["cpython", version]


def build(python: Path, target: Path) -> Path:
    """The wheel of this checkout for one interpreter."""
    with tempfile.TemporaryDirectory() as room:
        # A copy: what one interpreter builds in the tree would be in the next one's wheel.
        tree = Path(room) / "tree"
        tree.mkdir()
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
        environment = Path(room) / "env"
        _run(str(python), "-m", "venv", str(environment))
        _run(str(environment / "bin" / "pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", room, str(tree))
        (made,) = Path(room).glob("cdcflow-*.whl")
        target.mkdir(exist_ok=True)
        return Path(shutil.copy(made, target))


def install_and_try(python: Path, wheel: Path) -> str:
    """What the smoke capture says, in a fresh environment without a compiler and without Java."""
    with tempfile.TemporaryDirectory() as room:
        environment, home = Path(room) / "env", Path(room) / "home"
        home.mkdir()
        _run(str(python), "-m", "venv", str(environment))
        bare = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH")}
        # Nothing but the environment's own programs: no cc, no java.
        bare |= {"PATH": str(environment / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        limits = ["--constraint", str(ROOT / "constraints.txt")]
        _run(*pip, *limits, str(wheel), cwd=home, environment=bare)
        command = str(environment / "bin" / "cdcflow")
        said = _run(command, "--version", cwd=home, environment=bare)
        _run(command, "init", cwd=home, environment=bare)
        smoke = str(ROOT / "tests" / "wheels" / "smoke.py")
        captured = _run(str(environment / "bin" / "python"), "-I", smoke, str(home), cwd=home, environment=bare)
        return f"{said.strip()}: {captured.strip()}"


def _run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    found = interpreters()
    missing = [version for version in VERSIONS if version not in found]
    for version, python in found.items():
        wheel = build(python, ROOT / "dist")
        print(f"CPython {version}: dist/{wheel.name}: {install_and_try(python, wheel)}", flush=True)
    if missing:
        print(f"not here, so no wheel: CPython {', '.join(missing)}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
