"""A compiled decoder may be missing, but must not be one of other sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow.sources.engine.compiled_module import compiled_module


def test_module_that_was_not_built_is_none() -> None:
    """Without a compiler the plain decoders run."""
    assert compiled_module("cdcflow.sources.postgres.compiled.no_such_decoder") is None


def test_module_of_other_sources_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that was updated and not built again would decode several times as slowly, silently."""
    (tmp_path / "decoder_of_last_year.py").write_text("from cdcflow.sources.moved_since import Cells\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"compiled from other sources.*moved_since.*make setup"):
        compiled_module("decoder_of_last_year")


def test_module_that_this_machine_cannot_load_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain decoders run everywhere."""
    (tmp_path / "decoder_of_another_machine.py").write_text("raise ImportError('wrong ELF class')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert compiled_module("decoder_of_another_machine") is None
