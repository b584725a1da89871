"""The keys of messages as docs/agent.md lists them: generated from the types, so that the page cannot differ."""

from __future__ import annotations

import textwrap
import types
import typing

from orchestrator.node.dispatch import VERBS
from orchestrator.protocol.every_verb import ANSWERS, LINES, LISTS, REQUESTS
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import Report
from orchestrator.protocol.staging import StagingRequest, Watch
from orchestrator.protocol.verbs import REQUESTS as GANG_REQUESTS

WIDTH = 118
APART: tuple[type[Message], ...] = (Watch,)
"""Messages listed separately; other lists only name them."""
BY_HAND = {"stage", "check", "labels", "figures", "nettest", "rails", "tune-run", *GANG_REQUESTS}
"""Verbs whose rows say more than their keys; written by hand."""
OTHER_ANSWERS = {
    "probe": "a snapshot, the raw text of the machine's files and NVML (`model/snapshot_json.py`)",
    "push-offer": "lines: the files, the port and the secret of the offer, then how many bytes were read",
    "push-receive": "lines: the port and the secret of its own offer, then how far it is",
}
LISTED: dict[str, type[Message]] = {"staging": StagingRequest, "watch": Watch, "report": Report}


def keys(kind: type[Message]) -> str:
    """Every key of a message, and of nested messages on first use: `phase{name step}`, `ranks[]{tp_rank}`."""
    seen = {kind}
    return " ".join(_key(name, hint, seen) for name, hint in typing.get_type_hints(kind).items())


def block(name: str) -> str:
    """The text between this block's markers on the page."""
    lines = textwrap.wrap(keys(LISTED[name]), WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def verbs_table() -> str:
    """The verbs that no row of the page describes by hand."""
    rows = []
    for verb in sorted(set(VERBS) - BY_HAND):
        lines = "lines: " if verb in LINES else ""
        answer = ANSWERS.get(verb) or LINES.get(verb) or LISTS.get(verb)
        said = f"`{keys(answer)}`" if answer else OTHER_ANSWERS[verb]
        rows.append(f"| `{verb}` | `{keys(REQUESTS[verb])}` | {lines}{'a list of ' if verb in LISTS else ''}{said} |")
    return "\n".join(["", "| verb | request | value |", "|---|---|---|", *rows, ""])


def marks(name: str) -> tuple[str, str]:
    """The marker lines around a block."""
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
