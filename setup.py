"""Builds the Compiled decoders, where there is a compiler; `pyproject.toml` says everything else.

Every `.pyx` under `src` becomes an extension next to its stub. None of them is needed: without Cython or without a C
compiler the package installs all the same and runs its plain modules (`docs/decisions/0006-compiled-decoders.md`).
A wheel in which nothing was compiled is for every platform, and its name shows that.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = sorted(Path("src").rglob("*.pyx"))
# Set for a build that checks memory (`make fuzz-asan`): what to look for, as the compiler calls it.
SANITIZE = os.environ.get("CDCFLOW_SANITIZE", "")


# Set where nothing is to be compiled: `make demo ENGINE=local`, whose installation is waited for.
PLAIN = os.environ.get("CDCFLOW_PLAIN") == "1"


def extensions() -> list[Extension]:
    if PLAIN:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("cdcflow: no Cython, so the plain modules will run")  # noqa: T201  what a build says is its output
        return []
    flags = [f"-fsanitize={SANITIZE}", "-g", "-O1", "-DCDCFLOW_SANITIZE"] if SANITIZE else ["-O3"]
    found: list[Extension] = cythonize(
        [
            Extension(
                ".".join(path.with_suffix("").parts[1:]),
                [str(path)],
                extra_compile_args=flags,
                extra_link_args=flags[:1] if SANITIZE else [],
            )
            for path in SOURCES
        ],
        build_dir="build/cython",
        language_level=3,
    )
    for extension in found:
        extension.optional = True  # said here, because cythonize does not pass it on
    return found


class SideBySide(build_ext):
    """Compile as many extensions at a time as there are processors."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()


class Wheel(bdist_wheel):
    """Extensions are optional, so only after the build it is known whether there are any."""

    def run(self) -> None:
        if self.distribution.has_ext_modules():
            build = self.get_finalized_command("build_ext")
            self.run_command("build_ext")
            if not any(Path(build.get_ext_fullpath(e.name)).exists() for e in self.distribution.ext_modules):
                print("cdcflow: nothing was compiled, so the plain modules will run")  # noqa: T201
                self.distribution.ext_modules = []
                self.root_is_pure = True
        super().run()


def copy_runbook() -> None:
    """`cdcflow explain-error` prints sections of this page, also where there is no checkout."""
    page = Path("docs/runbook/errors.md")
    if page.exists():
        shutil.copyfile(page, "src/cdcflow/packaging/errors.md")


copy_runbook()
setup(ext_modules=extensions(), cmdclass={"bdist_wheel": Wheel, "build_ext": SideBySide})
