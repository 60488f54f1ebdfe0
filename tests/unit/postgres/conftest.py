"""Decoder tests run over both decoders: the plain decoders, and the compiled ones where they were built."""

from __future__ import annotations

import pytest

from cdcflow.sources.postgres.decoders import COMPILED, Compiled

_DECODERS = {"plain": None, "compiled": COMPILED} if COMPILED else {"plain": None}


@pytest.fixture(scope="module", params=_DECODERS)
def compiled(request: pytest.FixtureRequest) -> Compiled | None:
    """The kernels that decoders are created with; None: the plain ones."""
    return _DECODERS[request.param]
