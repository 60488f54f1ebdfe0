"""Which guards can run here: counting instructions needs valgrind and compiled decoders."""

from __future__ import annotations

import shutil

import pytest

from cdcflow.sources.mysql.decoders import COMPILED as MYSQL
from cdcflow.sources.postgres.decoders import COMPILED as POSTGRES

_LACKING = [tool for tool in ("valgrind", "vgdb") if shutil.which(tool) is None]
if MYSQL is None or POSTGRES is None:
    _LACKING.append("compiled decoders (a C compiler when cdcflow was installed)")

collect_ignore = ["test_decoder_instructions.py", "test_mysql_decoder_instructions.py"] if _LACKING else []


def pytest_report_header() -> str | None:
    if not _LACKING:
        return None
    return f"instructions of the decoders are not counted here, for want of {', '.join(_LACKING)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = pytest_report_header()
    if line is not None:
        terminalreporter.write_line(line)
