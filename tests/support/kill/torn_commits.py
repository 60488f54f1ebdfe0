"""Delta's commits after a power cut."""

from __future__ import annotations

from pathlib import Path

TORN = ("empty", "half", "zeros", "half a character")


def delta_logs(warehouse: Path, of: str) -> list[Path]:
    """The log of the table `orders`, that of the table of cuts, or both."""
    found = {"table": ["public/orders"], "cuts": ["_cdcflow_cuts"], "both": ["public/orders", "_cdcflow_cuts"]}
    return [warehouse / name / "_delta_log" for name in found[of]]


def tear_newest(log: Path, torn: str, back: int = 0) -> Path:
    """Tear the latest commit, or the one this many versions before it."""
    file = sorted(log.glob("*.json"))[-1 - back]
    content = file.read_bytes()
    left = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "half a character": content[:-20] + b"\xc3",
    }
    file.write_bytes(left[torn])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return file


__all__ = ["TORN", "delta_logs", "tear_newest"]
