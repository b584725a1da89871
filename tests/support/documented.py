"""The keys of messages as docs/agent.md lists them: written from the types, so that the page can't say otherwise."""

from __future__ import annotations

import textwrap
import types
import typing

from orchestrator.protocol.report import Report
from orchestrator.protocol.shape import Message
from orchestrator.protocol.staging import StagingRequest, Watch

WIDTH = 118
APART: tuple[type[Message], ...] = (Watch,)
"""Listed by themselves; elsewhere only named."""
LISTED: dict[str, type[Message]] = {"staging": StagingRequest, "watch": Watch, "report": Report}


def keys(kind: type[Message]) -> str:
    """Every key of a message; of messages inside it too, the first time: `phase{name step}`, `ranks[]{tp_rank}`."""
    seen = {kind}
    return " ".join(_key(name, hint, seen) for name, hint in typing.get_type_hints(kind).items())


def block(name: str) -> str:
    """What stands between the marks of this name on the page."""
    lines = textwrap.wrap(keys(LISTED[name]), WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def marks(name: str) -> tuple[str, str]:
    """The lines around it."""
    return f"<!-- keys of {name}: UPDATE_GOLDEN=1 writes them from protocol/ -->", f"<!-- end of {name} -->"


def _key(name: str, hint: object, seen: set[type[Message]]) -> str:
    inner, many = _inside(hint)
    brackets = "[]" if many else ""
    if inner is None or inner in APART or inner in seen:
        return name + brackets
    seen.add(inner)
    held = " ".join(_key(key, value, seen) for key, value in typing.get_type_hints(inner).items())
    return f"{name}{brackets}{{{held}}}"


def _inside(hint: object) -> tuple[type[Message] | None, bool]:
    """The message that a field holds, and whether the field is a list."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return _inside(arguments[0])[0], True
    if isinstance(hint, types.UnionType):
        return _inside(arguments[0])
    return (hint if isinstance(hint, type) and issubclass(hint, Message) else None), False
