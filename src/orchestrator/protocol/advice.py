"""Advice that was written before its gang and model were known, made exact."""

from __future__ import annotations

import re
import shlex

_COMMAND = re.compile(r"`l40s-deploy ([^`]+)`")
_OPEN = re.compile(r"\b(?:GANG|MODEL)\b")
_VERB = re.compile(r"[a-z][a-z -]*[a-z]")


def exact(advice: str, *, gang: str = "", model: str = "") -> str:
    """Advice whose commands can be pasted: names in the places of GANG and MODEL. Of a command whose name is not known
    the verb alone is left: 'with `checkpoint verify`'."""
    known = {"GANG": gang, "MODEL": model}

    def command(found: re.Match[str]) -> str:
        words = found[1]
        if any(not known[name] for name in _OPEN.findall(words)):
            verb = _VERB.match(words)
            return f"`{verb.group() if verb else words}`"
        return f"`l40s-deploy {_OPEN.sub(lambda name: shlex.quote(known[name.group()]), words)}`"

    return _COMMAND.sub(command, advice)
