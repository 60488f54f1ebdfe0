"""The results of tests of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.rehearsal.differences import CaseDifference


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one test. `problems`: what is wrong apart from rows, one sentence each."""

    file: str
    name: str
    seconds: float
    problems: tuple[str, ...] = ()
    differences: tuple[CaseDifference, ...] = ()

    @property
    def has_passed(self) -> bool:
        return not self.problems and not self.differences

    def to_json(self) -> dict[str, object]:
        return {
            "file": self.file,
            "name": self.name,
            "passed": self.has_passed,
            "seconds": round(self.seconds, 3),
            "problems": list(self.problems),
            "differences": [one.to_json() for one in self.differences],
        }

    def report(self) -> str:
        """Return the failure as lines, with the differences in columns."""
        lines = [f"{self.file}: {self.name}", *(f"  {line}" for p in self.problems for line in p.splitlines())]
        if self.differences:
            rows = [("table", "row", "column", "expected", "found")]
            rows += [(d.table, d.row, d.column, d.expected, d.found) for d in self.differences]
            widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
            lines += [
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in rows
            ]
        return "\n".join(lines)
