"""`python -m bench.policies`: what policies and row rules cost, as a share of a drain and of a backfill without them.

Each case is a capture of the same rows with other settings in `tables`; in every round each case runs once, in turn.
The figure is the CPU time of a capture per row, less that of the capture without any setting in the same round, as a
share of the latter (the median of the rounds). It includes what follows from a policy: a hash has 64 characters that
no codec compresses, where the value may have had ten.

The limits are measured first: OpenSSL's AES-GCM-SIV and HMAC-SHA-256 of the same values, called one by one, and
cdcflow's kernels alone. `--tree OLDER` also measures each case in that checkout (see `bench.beside`).
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from bench import server
from bench.backfill import filled
from bench.harness import Child, Failed, Outcome, Party, rounds, tell
from bench.server import Server, ended, fresh_log, insert_rows
from bench.shapes import STAMP, Shape
from cdcflow.log.read.folder import FolderReader
from cdcflow.sources.privacy.kernels import encrypt_of, hash_of
from cdcflow.sources.privacy.secret_keys import NONCE

SECRET = "5e8ff9bf55ba3508199d22e984129be6"  # noqa: S105  of this benchmark
PER_TRANSACTION = 100
NONE = "without"

PEOPLE = Shape(
    "people",
    (
        ("id", "bigint", "i"),
        ("email", "text", "'user' || i || '@example.com'"),
        ("country", "text", "'country number ' || i % 50"),
        ("address", "jsonb", "jsonb_build_object('city', 'Bonn ' || i, 'street', 'Rheinweg', 'floor', i % 9)"),
        ("kind", "jsonb", "jsonb_build_object('city', 'Bonn ' || i % 50, 'street', 'Rheinweg', 'floor', i % 9)"),
        ("person", "integer", "i % 5000"),
        ("amount", "numeric(10,2)", "(i % 1000000) / 100.0"),
        ("placed", "timestamptz", STAMP),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Settings of the table. `column` must then have the value `expected(id)`, or not that of the source."""

    name: str
    rules: Mapping[str, object] = field(default_factory=dict)
    column: str = "email"
    expected: Callable[[int], str] | None = None


def _email(number: int) -> str:
    return f"user{number}@example.com"


def _country(number: int) -> str:
    return f"country number {number % 50}"


def _digest(text: str) -> str:
    return hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


SOURCE: Mapping[str, Callable[[int], str]] = {"email": _email, "country": _country}
KEY = "${env:BENCH_POLICY_KEY}"
CASES = (
    Case(NONE, expected=_email),
    Case("mask", {"columns": {"email": "mask"}}, expected=lambda _: "****"),
    Case("hash, all values differ", {"columns": {"email": {"hash": KEY}}}, expected=lambda n: _digest(_email(n))),
    Case(
        "hash, 50 values",
        {"columns": {"country": {"hash": KEY}}},
        "country",
        lambda n: _digest(_country(n)),
    ),
    Case("encrypt, all values differ", {"columns": {"email": {"encrypt": KEY}}}),
    Case("encrypt, 50 values", {"columns": {"country": {"encrypt": KEY}}}, "country"),
    Case("key_by, 5,000 persons", {"columns": {"email": {"encrypt": {"key": KEY, "key_by": "person"}}}}),
    Case("JSON, all documents differ", {"computed": {"city": "address->>'$.city'"}}, "city", lambda n: f"Bonn {n}"),
    Case("JSON, 450 documents", {"computed": {"city": "kind->>'$.city'"}}, "city", lambda n: f"Bonn {n % 50}"),
    Case("where, all rows fit", {"where": "person < 5000 AND country <> 'x'"}, expected=_email),
)


def settings(running: Server, log: Path, number: int) -> dict[str, object]:
    found = server.settings(running, log, slot=f"bench{number}", publication=f"bench{number}")
    return {**found, "tables": {"public.people": dict(CASES[number].rules)}} if CASES[number].rules else found


def check(log: Path, case: Case, rows: int) -> None:
    """Raises Failed unless the log has all rows under their policy."""
    tables = [found for table, _, found in FolderReader(log).read_rows() if table.id.name == PEOPLE.name]
    if sum(map(len, tables)) != rows:
        raise Failed(f"{case.name}: {sum(map(len, tables))} of {rows} rows are in the log")
    sample = pa.concat_tables(tables).select(["id", case.column]).slice(0, 200)
    for row in sample.to_pylist():
        value, number = row[case.column], row["id"]
        if value != case.expected(number) if case.expected else value == SOURCE[case.column](number):
            raise Failed(f"{case.name}: row {row['id']} has a wrong value")


def drained(running: Server, template: Path, number: int, rows: int) -> Outcome:
    running.copy_slot(f"kept{number}", f"bench{number}")
    with fresh_log(template, template.with_name("log")) as log:
        found = Child.of("capture", {"config": settings(running, log, number), "until_rows": rows}).outcome()
        check(log, CASES[number], rows)
    return found


def backfilled(running: Server, folder: Path, number: int, rows: int) -> Outcome:
    running.drop_slot(f"bench{number}")
    running.execute(f"DROP PUBLICATION IF EXISTS bench{number}")
    with fresh_log(None, folder / "log") as log:
        found = Child.of("capture", {"config": settings(running, log, number), "once": True}).outcome()
        check(log, CASES[number], rows)
    return found


def templates(running: Server, folder: Path) -> list[Path]:
    """A log of each case that was begun while the table was empty, and a slot that stays there."""
    found = []
    for number in range(len(CASES)):
        made = folder / f"template{number}"
        Child.of("capture", {"config": settings(running, made, number), "once": True}).outcome()
        running.copy_slot(f"bench{number}", f"kept{number}")
        found.append(made)
    return found


def here(party: Party) -> Outcome:
    """With this checkout's cdcflow, whatever children import by default."""
    tree, Child.tree = Child.tree, None
    try:
        return party()
    finally:
        Child.tree = tree


def parties(of: Callable[[int], Party]) -> dict[str, Party]:
    """A party of each case, and one with the other checkout, if there is one."""
    found: dict[str, Party] = {}
    for number, case in enumerate(CASES):
        if Child.tree is not None:
            found[f"{case.name} (before)"] = of(number)
        found[case.name] = partial(here, of(number))
    return found


def measured(rows: int, count: int) -> Iterator[tuple[str, Mapping[str, Sequence[Outcome]]]]:
    with tempfile.TemporaryDirectory() as held, Server(max_replication_slots="60", max_wal_senders="60") as running:
        folder = Path(held)
        running.execute(PEOPLE.create)
        begun_logs = templates(running, folder)
        before = running.value("SELECT pg_current_wal_lsn()")
        insert_rows(running, PEOPLE, rows, PER_TRANSACTION)
        ended(running, PEOPLE, begun_logs[0], rows, before)
        drains = parties(lambda number: partial(drained, running, begun_logs[number], number, rows))
        yield "drain", rounds(drains, count, postmaster=running.postmaster)
    with tempfile.TemporaryDirectory() as held, Server(max_replication_slots="60", max_wal_senders="60") as running:
        filled(running, PEOPLE, rows)
        backfills = parties(lambda number: partial(backfilled, running, Path(held), number, rows))
        yield "backfill", rounds(backfills, count, postmaster=running.postmaster)


def shares(found: Mapping[str, Sequence[Outcome]]) -> Iterator[tuple[str, float, list[float]]]:
    """Each case's CPU per row in µs, and by how much it exceeds that of the capture without settings, by round."""
    for name, outcomes in found.items():
        base = found[f"{NONE} (before)" if name.endswith("(before)") else NONE]
        more = sorted(o.cpu_s / b.cpu_s - 1 for o, b in zip(outcomes, base, strict=True))
        yield name, statistics.median(o.cpu_s_per_million for o in outcomes), more


def limits(count: int) -> Iterator[tuple[str, float]]:
    """Yield the CPU time per value, in µs, of the primitives and of cdcflow's kernels, for values that all differ."""
    texts = [_email(number) for number in range(count)]
    values, contents, key = pa.array(texts), [text.encode() for text in texts], SECRET.encode()
    cipher = AESGCMSIV(key)

    def each(act: Callable[[bytes], object]) -> Callable[[], object]:
        return lambda: deque(map(act, contents), maxlen=0)

    for name, work in {
        "a call": each(bytes.__len__),
        "OpenSSL's AES-256-GCM-SIV, with a call": each(lambda value: cipher.encrypt(NONCE, value, None)),
        "OpenSSL's HMAC-SHA-256, with a call": each(lambda value: hmac.digest(key, value, "sha256")),
        "kernel of encrypt": lambda: encrypt_of(key, cipher, NONCE, "")(values),
        "kernel of hash": lambda: hash_of(key, "")(values),
    }.items():
        seconds = []
        for _ in range(5):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
        yield name, min(seconds) / count * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.policies", description=__doc__)
    parser.add_argument("--tree", type=Path, help="another checkout, whose cases run, too")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["BENCH_POLICY_KEY"] = SECRET
    Child.tree = options.tree and options.tree.resolve()
    tell(server.machine("tcp"))
    print("limits", flush=True)
    for name, cost in limits(100_000):
        print(f"  {name:42} {cost:6.2f} µs")
    for name, found in measured(options.rows // PER_TRANSACTION * PER_TRANSACTION, options.rounds):
        print(name, flush=True)
        for case, cost, more in shares(found):
            print(
                f"  {case:36} {cost:6.2f} µs/row  {statistics.median(more):+5.0%} ({more[0]:+.0%} to {more[-1]:+.0%})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
