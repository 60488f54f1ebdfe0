"""Seed data and a load for an existing server: the demo's tables and the demo's writer, as two commands.

    python -m cdcflow.demo.load seed URL [--password-file FILE] [--rows N]
    python -m cdcflow.demo.load write URL [--password-file FILE] [--per-second N]

URL names the server and a user that owns the database `airports` on it. `seed` creates and fills the tables and ends;
if they exist, it changes nothing. `write` keeps changing them until SIGTERM. The dev stack in `docker/` runs both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from cdcflow.demo import source_choice, writer


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    password = None if chosen.password_file is None else chosen.password_file.read_text().rstrip("\r\n")
    if chosen.what == "seed":
        loaded = source_choice.seed(chosen.url, password, chosen.rows)
        sys.stdout.write(json.dumps(loaded or "loaded before") + "\n")
        return 0
    stop = writer.told_to_stop()
    with closing(source_choice.session(chosen.url, password)) as opened:
        writer.write(opened, chosen.per_second, stop)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cdcflow.demo.load", description="Seed data and a load for a database.")
    commands = parser.add_subparsers(dest="what", required=True)
    seed = commands.add_parser("seed", help="create and fill the tables, unless they exist")
    write = commands.add_parser("write", help="keep changing them, until SIGTERM")
    for command in (seed, write):
        command.add_argument("url", help="postgresql://user@host/airports or mysql://user@host/airports")
        command.add_argument("--password-file", type=Path, help="a file with the user's password")
    seed.add_argument("--rows", type=int, help="load only this many flights")
    write.add_argument("--per-second", type=float, default=5.0, help="transactions a second")
    return parser


if __name__ == "__main__":
    sys.exit(main())
