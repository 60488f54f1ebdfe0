"""Check commit messages: `python -m tests.commits` the last 20, `--file PATH` one that is being written.

Merge commits are not checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.commits.messages import faults_of

END = "\x1e"


def main() -> int:
    """Print what is wrong, and return 1 if something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="the file with the message of a commit that is being written")
    parser.add_argument("--last", type=int, default=20, help="check this many commits")
    arguments = parser.parse_args()
    messages = [arguments.file.read_text(encoding="utf-8")] if arguments.file else _last_messages(arguments.last)
    faults = [
        f"{message.splitlines()[0] if message else '(empty)'}: {fault}"
        for message in messages
        for fault in faults_of(message)
    ]
    print("\n".join(faults) or f"{len(messages)} messages are in order")
    return 1 if faults else 0


def _last_messages(count: int) -> list[str]:
    """The messages of the latest commits. The form `%x1e` ends each, because a body may have empty lines."""
    command = ("git", "log", "--no-merges", f"-{count}", "--format=%B%x1e")
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [message.strip() for message in shown.split(END) if message.strip()]


if __name__ == "__main__":
    sys.exit(main())
