"""Role `stay`: answers verbs, one request a line, in the order in which they come.

`{"id": ..., "verb": ..., "request": {...}}` in, the verb's answer with that id out. It ends with its input, or when
nobody has asked for long.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator, Sequence

from orchestrator.node import dispatch, requests
from orchestrator.node.failure import Failure
from orchestrator.node.telling import tell

IDLE_S = 60.0
"""Whoever still watches asks every second; a connection that was cut may stay open for hours."""
READ_OR_WRITE_A_FEW_FILES = ("report", "lock", "go", "figures")
"""They are soon done, and change nothing of the process that answers; the others get one of their own."""


def run(_arguments: Sequence[str]) -> int:
    """Answer until the reader is gone."""
    for line in _lines():
        requests.begins()
        _serve(line)
    return 0


def _serve(line: bytes) -> None:
    try:
        document = json.loads(line)
        which, verb, request = document["id"], str(document["verb"]), dict(document["request"])
    except (ValueError, KeyError, TypeError) as wrong:
        tell(dispatch.refusal(Failure("bad-request", f"not a request: {wrong}", "stdin")))
        return
    if verb in READ_OR_WRITE_A_FEW_FILES:
        _say(which, dispatch.answer_of(verb, request))
    elif dispatch.streams(verb):
        _say(which, dispatch.refusal(Failure("unknown-verb", f"{verb!r} has more than one answer", "role stay")))
    else:
        _serve_in_a_child(which, verb, request)


def _serve_in_a_child(which: object, verb: str, request: dict[str, object]) -> None:
    """Forked from here, where Python and the verb's modules are loaded already. Its end without an answer is one."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the next request is not for programs that it starts
            _say(which, dispatch.answer_of(verb, request))
            status = 0
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended:
        how = f"a signal ({-ended})" if ended < 0 else f"status {ended}"
        fix = "check `dmesg` on the node for the out-of-memory killer"
        _say(which, dispatch.refusal(Failure("no-answer", f"it ended with {how} and no answer", f"verb {verb}", fix)))


def _say(which: object, answer: dict[str, object]) -> None:
    tell({"id": which, **answer})


def _lines() -> Iterator[bytes]:
    parts: list[bytes] = []
    while select.select([0], [], [], IDLE_S)[0]:
        more = os.read(0, 1 << 16)
        if not more:
            return
        first, *others = more.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts)
            parts = [other]
