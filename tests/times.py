"""Run make targets and write how long they took into CONTRIBUTING.md: `make times TARGETS="lint unit"`.

The table of CONTRIBUTING.md lists the targets that a contributor uses. What a target does is read from the Makefile;
the minutes of targets that did not run stay.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- times: made by `make times` -->\n", "<!-- end of times -->"
HEAD = "| target | what it does | minutes |\n| --- | --- | --- |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=["lint", "unit"], help="the targets to run")
    took: dict[str, str] = {}
    for target in parser.parse_args().targets:
        began = time.monotonic()
        if subprocess.run(("make", "--silent", target), cwd=ROOT, check=False).returncode:
            print(f"make {target} failed: its minutes stay", file=sys.stderr)
            return 1
        took[target] = rounded((time.monotonic() - began) / 60)
    PAGE.write_text(with_times(PAGE.read_text(encoding="utf-8"), described_targets(), took), encoding="utf-8")
    return 0


def rounded(minutes: float) -> str:
    """Tenths below ten minutes, whole minutes above: these machines differ by more."""
    return f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}"


def described_targets() -> dict[str, str]:
    """What each target does: the text after `##` in the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z][a-z-]*):[^#\n]*## (.+)$", text, re.MULTILINE))


def with_times(page: str, described: Mapping[str, str], took: Mapping[str, str]) -> str:
    """The page, whose table has today's descriptions and the minutes of the targets that ran."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    rows = [(name, took.get(name, minutes)) for name, minutes in read_table(table).items()]
    rows += [(name, minutes) for name, minutes in took.items() if name not in read_table(table)]
    lines = [f"| `make {name}` | {described[name]} | {minutes} |\n" for name, minutes in rows]
    return f"{before}{BEGIN}{HEAD}{''.join(lines)}{END}{after}"


def read_table(table: str) -> dict[str, str]:
    """The minutes of each target, in the order of the table."""
    return dict(re.findall(r"^\| `make ([a-z-]+)` \| .* \| (\S+) \|$", table, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main())
