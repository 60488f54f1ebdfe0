"""Reads the registers and queries the members of a fleet, again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from cdcflow.errors import CdcflowError
from cdcflow.fleet.http_member import HttpMember
from cdcflow.fleet.members import Found, Members, UnknownMember
from cdcflow.fleet.registers import Content, ReportRegister, pipeline_of
from cdcflow.fleet.report import REPORT_BYTES_MAX, MemberReport, Unreadable

ASKED_AT_ONCE = 16


class FleetWatch:
    """Keeps `members` current. `refresh` is called by one thread at a time."""

    def __init__(self, registers: Sequence[ReportRegister], asked: Sequence[HttpMember], every_s: float) -> None:
        self.members = Members()
        self._registers = registers
        self._asked = asked
        self._every_s = every_s
        self._stop = threading.Event()
        self._has_read = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-watch", daemon=True)

    @property
    def has_read(self) -> bool:
        """Whether every place was tried once."""
        return self._has_read.is_set()

    def refresh(self) -> None:
        """Read every register and query every member once, several at a time."""
        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="fleet-read") as threads:
            jobs = [threads.submit(self._read, one) for one in self._registers]
            jobs += [threads.submit(self._ask, one) for one in self._asked]
        for job in jobs:
            job.result()
        self._has_read.set()

    def start(self) -> None:
        """Refresh again and again, in a thread."""
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.refresh()
            self._stop.wait(self._every_s)

    def _read(self, register: ReportRegister) -> None:
        try:
            contents = register.read()
        except CdcflowError as error:
            self.members.note_failure(register.name, _first_line(error))
        else:
            self.members.note(register.name, parse_reports(contents))

    def _ask(self, member: HttpMember) -> None:
        try:
            report = member.report()
        except CdcflowError as error:
            self.members.note_failure(member.name, _first_line(error), member.pipeline)
        else:
            self.members.note(member.name, {report.name: report})


def parse_reports(contents: Mapping[str, Content]) -> dict[str, Found]:
    """Return the reports of a register, by their names there; for each that cannot be read, the reason."""
    return {name: _parse(pipeline_of(name), content) for name, content in contents.items()}


def _parse(pipeline: str, content: Content) -> Found:
    if content is None:
        return UnknownMember(pipeline, f"its report has more than {REPORT_BYTES_MAX} bytes")
    try:
        report = MemberReport.from_bytes(content)
    except Unreadable as error:
        return UnknownMember(pipeline, f"its report cannot be read: {error}")
    if report.name != pipeline:
        return UnknownMember(pipeline, "its report is that of another pipeline")
    return report


def _first_line(error: CdcflowError) -> str:
    text, _, remedy = str(error).partition("\n")
    return f"{text}; {remedy.strip()}" if remedy.strip() else text
