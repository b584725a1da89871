"""Every engine adapter by name."""

from __future__ import annotations

from difflib import get_close_matches

from orchestrator.engines import sglang_0_4_4, sglang_0_5
from orchestrator.engines.dialect import Dialect
from orchestrator.model.errors import InputError

DIALECTS = {adapter.name: adapter for adapter in (sglang_0_4_4.DIALECT, sglang_0_5.DIALECT)}


def dialect(name: str) -> Dialect:
    """The adapter with this name; InputError names the nearest ones."""
    try:
        return DIALECTS[name]
    except KeyError:
        near = get_close_matches(name, DIALECTS, n=2) or list(DIALECTS)
        raise InputError(
            f"no engine adapter is called {name!r}", where="stack: dialect", fix="one of: " + ", ".join(near)
        ) from None
