"""Imports a compiled decoder, if one was built; otherwise the plain one runs."""

from __future__ import annotations

import importlib
from types import ModuleType


def compiled_module(name: str) -> ModuleType | None:
    """Return the compiled module of this name; None if it was not built.

    Raises:
        ImportError: the module was built from other sources, and imports a module that no longer exists. Running the
            plain decoder instead would make a capture slow, and nothing would show the reason.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise ImportError(
            f"{name} was compiled from other sources of cdcflow: {error.msg}. Run `make setup` in the "
            "checkout, which compiles it again",
            name=name,
        ) from None
    except ImportError:
        return None  # this machine cannot load it
