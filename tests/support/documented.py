"""The keys of messages as the reference lists them, from the types."""

from __future__ import annotations

import types
import typing

from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import Watch

APART: tuple[type[Message], ...] = (Watch,)
"""Messages listed separately; other lists only name them."""


def keys(kind: type[Message]) -> str:
    """Every key of a message, and of nested messages on first use: `phase{name step}`, `ranks[]{tp_rank}`."""
    seen = {kind}
    return " ".join(_key(name, hint, seen) for name, hint in typing.get_type_hints(kind).items())


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
