"""Plant small faults, one at a time, and see whether the quick tests find them.

    python tests/mutants/run.py --mutants 200 --seed 1        a sample over all rooms
    python tests/mutants/run.py --room log/format --mutants 0  every fault of one room
    python tests/mutants/run.py --survivors                   those in survivors.txt again

Everything foreign is imported once; each fault is then planted in a fork of this process, by an import hook, and the
fork runs the tests that `suites` names, nearest first, until one fails. With `--servers` what survives is planted in a
copy of the package, which the processes that these tests start import too, and meets the rest of the quick tests and
the tests with real servers. There a test has found a fault only if it fails twice and passes without the fault, because
servers are sometimes slow or fail.

`equivalent.txt` has, with a reason, the faults that no test can find because nothing differs; `survivors.txt` those
that the quick tests did not find when they were last planted, and which test with real servers does. The last line says
`N mutants, K killed, S survived, E equivalent`, the one before it how much that is of those that were planted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "src" / "cdcflow"
SURVIVORS = HERE / "survivors.txt"
EQUIVALENT = HERE / "equivalent.txt"
TIMEOUT_S = 90.0
"""A fault that makes the tests hang is found: it waits this long for that, and longer where the tests take long."""
PYTEST = ["-q", "-x", "-p", "no:randomly", "-k", "not planted and not while_new_shapes_come", "-m", "not long"]
"""Tests of planted bugs plant their own; and one test that switches threads takes as long as twenty others."""
IN_FORK = [*PYTEST, "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
"""Modules that were imported before cannot be rewritten."""
FEWER = {"CDCFLOW_SEEDS": "60", "CDCFLOW_HISTORIES": "50", "CDCFLOW_HISTORY_SEED": "1"}
"""Simulations and histories, a fixed number and always the same."""
SLOWER = 4
"""On a shared machine a stage may take this many times as long as when it was tried without a fault."""
_took_s: dict[tuple[str, ...], float] = {}

sys.path.insert(0, str(ROOT))

from tests.mutants.faults import Fault, compiles, faults_of  # noqa: E402 - from the repository's root, wherever it is run
from tests.mutants.suites import files, quick, with_servers  # noqa: E402  see above


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another text."""

    def __init__(self, path: str, source: bytes) -> None:
        self._name = "cdcflow." + path.removesuffix(".py").replace("/", ".")
        self._file = str(PACKAGE / path)
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._file, "exec"), module.__dict__)  # noqa: S102 - that is what this is for


def _tests_in_fork(tests: Sequence[str], fault: Fault | None, learned: Path | None = None) -> tuple[int, str]:
    """pytest's exit code (-1: it took too long), and the end of its output."""
    with tempfile.TemporaryFile() as output:
        patience_s = max(TIMEOUT_S, SLOWER * _took_s.get(tuple(tests), 600.0))
        child = os.fork()
        if child == 0:
            _run([f"--timeout={patience_s / 2}", *tests], fault, learned, output.fileno())
        code = _waited(child, patience_s)
        output.seek(0)
        return code, output.read().decode(errors="replace")[-3000:]


def _run(tests: Sequence[str], fault: Fault | None, learned: Path | None, output: int) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if fault is not None:
            sys.meta_path.insert(0, _Planted(fault.path, fault.applied((PACKAGE / fault.path).read_bytes())))
        import hypothesis
        import pytest

        # What failed under one fault must not be tried first under the next.
        hypothesis.settings.register_profile("mutants", database=None, derandomize=True)
        hypothesis.settings.load_profile("mutants")
        code = int(pytest.main([*IN_FORK, *tests]))
        if learned is not None:
            learned.write_text(json.dumps([n for n, m in sys.modules.items() if _is_foreign(m)]))
    except BaseException:  # noqa: BLE001 - the fork must not continue as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(child: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    pause = 0.005
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _is_foreign(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file and "_pytest" not in file and not file.startswith(str(ROOT / "src"))


def _prepare(stages: set[tuple[str, ...]]) -> None:
    """Check that the tests pass without a fault, and import the third-party modules that they import."""
    for stage in sorted(stages):
        with tempfile.TemporaryDirectory() as room:
            learned = Path(room) / "modules"
            began = time.monotonic()
            code, output = _tests_in_fork(stage, None, learned)
            if code != 0:
                sys.exit(f"{' '.join(stage)}: fails without any fault\n{output}")
            for name in json.loads(learned.read_text()):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        _took_s[stage] = time.monotonic() - began
        print(f"passes without a fault, in {_took_s[stage]:.0f} s: {' '.join(stage)}", flush=True)


def _found_by_quick(fault: Fault) -> bool:
    for stage in quick(fault.path):
        code, _ = _tests_in_fork(stage, fault)
        if code == 5:
            sys.exit(f"{' '.join(stage)}: no tests")
        if code != 0:
            return True
    return False


def _found_with_servers(fault: Fault) -> str:
    """The test that finds it; "" when none does."""
    return next(filter(None, (_found_in_copy(stage, fault) for stage in with_servers(fault.path))), "")


def _found_in_copy(tests: Sequence[str], fault: Fault) -> str:
    """Which test fails with the fault, fails once more by itself, and passes without the fault; "" when none does."""
    with tempfile.TemporaryDirectory(prefix="cdcflow-mutant-") as room:
        copy, cache = Path(room) / "src", Path(room) / "cache"
        shutil.copytree(PACKAGE, copy / "cdcflow", ignore=shutil.ignore_patterns("__pycache__", "*.c"))
        target = copy / "cdcflow" / fault.path
        source = target.read_bytes()
        target.write_bytes(fault.applied(source))
        environment = {**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_STORAGE_DIRECTORY": f"{room}/hypothesis"}
        command = [sys.executable, "-m", "pytest", *PYTEST, "--timeout", "300", "--hypothesis-seed", "0"]
        command += ["-o", f"cache_dir={cache}", *tests]
        run = functools.partial(subprocess.run, cwd=ROOT, env=environment, capture_output=True, text=True)
        done = run(command)
        if done.returncode == 0:
            return ""
        failures = cache / "v" / "cache" / "lastfailed"
        if not failures.exists():
            sys.exit(f"{' '.join(tests)}: pytest ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        failed = " ".join(json.loads(failures.read_text()))
        command += ["--last-failed"]
        if run(command).returncode == 0:
            return ""
        target.write_bytes(source)
        done = run(command)
        if done.returncode != 0:
            sys.exit(f"{failed}: fails without any fault\n{done.stdout[-3000:]}")
        return failed


def _listed(file: Path) -> dict[str, str]:
    """Faults of a list, each with its explanation."""
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.partition("  # ") for line in lines if line and not line.startswith("#"))
    return {fault: said for fault, _, said in pairs}


def _write_survivors(survived: dict[str, str], looked_at: set[str]) -> None:
    kept = {fault: said for fault, said in _listed(SURVIVORS).items() if fault not in looked_at or fault in survived}
    listed = {**kept, **{fault: said or kept.get(fault, "") for fault, said in survived.items()}}
    for fault in _listed(EQUIVALENT):
        listed.pop(fault, None)
    lines = [f"{fault}  # {said}" if said else fault for fault, said in sorted(listed.items())]
    head = [line for line in SURVIVORS.read_text().splitlines() if line.startswith("#")] if SURVIVORS.exists() else []
    SURVIVORS.write_text("\n".join([*head, *lines]) + "\n")


def _chosen(arguments: argparse.Namespace) -> list[Fault]:
    every = [fault for path in files(PACKAGE) if path.startswith(arguments.room) for fault in faults_of(PACKAGE, path)]
    if arguments.survivors or arguments.only:
        wanted = _listed(SURVIVORS)
        return [f for f in every if (arguments.only in str(f) if arguments.only else str(f) in wanted)]
    chance = random.Random(arguments.seed)
    sample = chance.sample(every, len(every))
    planted = (f for f in sample if compiles(PACKAGE, f))
    return list(itertools.islice(planted, arguments.mutants or None))


def _report(chosen: Sequence[Fault], killed: Counter[str], survived: Counter[str]) -> Iterator[str]:
    for path in sorted({f.path for f in chosen}):
        tried = killed[path] + survived[path]
        if tried:
            yield f"{path:42} {killed[path]:4} of {tried:4} killed  {100 * killed[path] / tried:4.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant small faults and see whether the tests find them.")
    parser.add_argument("--mutants", type=int, default=200, help="how many; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", default="", help="only files whose path begins so (log, tables/merge/reduce)")
    parser.add_argument("--only", default="", help="only faults whose description has this in it")
    parser.add_argument("--survivors", action="store_true", help="those in survivors.txt again")
    parser.add_argument("--servers", action="store_true", help="what survives meets all quick tests and real servers")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= FEWER
    sys.path.insert(0, str(PACKAGE.parent))
    chosen = _chosen(arguments)
    equivalent = _listed(EQUIVALENT)
    tried = [f for f in chosen if str(f) not in equivalent]
    _prepare({stage for f in tried for stage in quick(f.path)})
    killed, survived, left = Counter[str](), Counter[str](), dict[str, str]()
    for number, fault in enumerate(tried, start=1):
        began = time.monotonic()
        found, by = _found_by_quick(fault), ""
        if not found:
            by = _found_with_servers(fault) if arguments.servers else ""
            left[str(fault)] = f"found by {by}" if by else ""
        (killed if found or by else survived)[fault.path] += 1
        answer = "killed  " if found or by else "SURVIVED"
        _write_survivors(left, {str(f) for f in tried[:number]})
        print(
            f"{number:5} {answer} {time.monotonic() - began:5.1f} s  {fault}", *([f"by {by}"] if by else []), flush=True
        )
    print(*_report(tried, killed, survived), sep="\n")
    if tried:
        shares = {"killed by the quick suites": len(tried) - len(left), "in all": killed.total()}
        print(*(f"{100 * share / len(tried):.1f} % {what}" for what, share in shares.items()), sep=", ")
    print(
        f"{len(chosen)} mutants, {killed.total()} killed, {survived.total()} survived,"
        f" {len(chosen) - len(tried)} equivalent"
    )


if __name__ == "__main__":
    main()
