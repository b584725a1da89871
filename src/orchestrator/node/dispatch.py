"""Finds the verb, reads its request from stdin, writes its answer to stdout; and starts this application again.

A verb is a function `answer(request) -> JSON-able`, or `stream(request) -> None`, which writes to stdout itself. Only
the module of the verb that was asked for is imported, since a report must not wait for the rest. Role `stay` answers
verbs, one request a line, in the order in which they come: `{"id": ..., "verb": ..., "request": {...}}` in, the verb's
answer with that id out. It ends with its input, or when nobody has asked for long.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.node import requests
from orchestrator.node.requests import tell
from orchestrator.protocol.errors import DeployError

VERBS = {
    "probe": "orchestrator.node.look.probe:answer",
    "figures": "orchestrator.node.verbs.figures:answer",
    "labels": "orchestrator.node.look.labels:answer",
    "prerequisites": "orchestrator.node.look.environment:answer",
    "tune": "orchestrator.tuning.on_node.tune:answer",
    "tuned": "orchestrator.tuning.on_node.tune:held",
    "stage": "orchestrator.node.verbs.stage:stage",
    "check": "orchestrator.node.verbs.stage:check",
    "arm": "orchestrator.node.verbs.arm:answer",
    "go": "orchestrator.node.verbs.orders:go",
    "stop": "orchestrator.node.verbs.orders:stop",
    "report": "orchestrator.node.verbs.report:answer",
    "logs": "orchestrator.node.verbs.logs:stream",
    "lock": "orchestrator.node.verbs.lock:answer",
    "history": "orchestrator.node.verbs.report:history",
    "excerpt": "orchestrator.node.verbs.logs:excerpt",
    "staged": "orchestrator.node.verbs.stage:staged",
    "ask": "orchestrator.node.verbs.ask:answer",
    "job": "orchestrator.jobs.on_node.job:stream",
    "rails": "orchestrator.nettest.on_node.port_test:stream",
    "listen": "orchestrator.node.network.reach:stream",
    "dial": "orchestrator.node.network.reach:dial",
    "push-offer": "orchestrator.checkpoint.on_node.push.giver:stream",
    "push-receive": "orchestrator.checkpoint.on_node.push.receive:stream",
    "same-root": "orchestrator.node.verbs.same_root:answer",
    "digests": "orchestrator.checkpoint.on_node.digests:stream",
    "reblock": "orchestrator.checkpoint.on_node.verify_reblocked:stream",
    "inspect": "orchestrator.checkpoint.on_node.directory:answer",
    "download": "orchestrator.checkpoint.on_node.download:stream",
}
"""What answers each verb. The functions named `stream` give more than one answer."""

PROCESSES = {
    "agent": "orchestrator.node.agent.agent:run",
    "hang-look": "orchestrator.node.engine.hang_look:run",
    "gpus": "orchestrator.node.look.nvml:run",
    "hub-client": "orchestrator.checkpoint.on_node.hub_client:run",
    "stay": "orchestrator.node.dispatch:stay",
}
"""Roles that live on: functions from arguments to an exit status; no request, no answer."""
IDLE_S = 60.0
"""Whoever still watches asks every second; a connection that was cut may stay open for hours."""
ANSWERED_IN_PLACE = ("report", "lock", "go", "figures", "staged", "ask")
"""They read or write a few files, or ask a web server within its time, and change nothing of the process that answers;
the others get one of their own, which costs ten times what they do."""


def serve(argv: Sequence[str]) -> int:
    """Run one verb. Told failures are answers, so the exit status is 0 for them; 2 for an unknown verb."""
    name = argv[0] if argv else ""
    if name in PROCESSES:
        return int(_found(PROCESSES[name])(argv[1:]))
    try:
        if (answer := answer_of(name)) is not None:
            tell(answer)
    except BrokenPipeError:
        return 1
    return 0 if name in VERBS else 2


def streams(name: str) -> bool:
    """Whether a verb writes its answers itself."""
    return VERBS.get(name, "").endswith(":stream")


def _found(place: str) -> Callable[[Any], Any]:
    module, _, name = place.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


def answer_of(name: str, request: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """A verb's answer, as it is written; None where it has written its answers itself.

    request: None for the one on stdin. Raises BrokenPipeError if the reader is gone.
    """
    if name not in VERBS:
        return refusal(
            DeployError(
                f"no verb {name!r}; known: {', '.join(VERBS)}", where="node application", fix="", kind="unknown-verb"
            )
        )
    try:
        value = _found(VERBS[name])(_request() if request is None else request)
    except BrokenPipeError:
        raise
    except DeployError as failure:
        return refusal(failure)
    except Exception as defect:
        from orchestrator.node.os_errors import used_up

        if (lack := used_up(defect, f"node verb {name}")) is not None:
            return refusal(lack)
        import traceback

        what, fix = f"{type(defect).__name__}: {defect}", "report this bug with the lines in `trace`"
        error = DeployError(what, where=f"node verb {name}", fix=fix, kind="defect").as_told()
        return {"ok": False, "error": {**error, "trace": "".join(traceback.format_exception(defect))}}
    return None if streams(name) else {"ok": True, "value": value}


def _request() -> dict[str, Any]:
    text = sys.stdin.buffer.read()
    try:
        request = json.loads(text or b"{}")
    except ValueError as wrong:
        raise DeployError(f"stdin is not JSON: {wrong}", where="stdin", fix="", kind="bad-request") from None
    if not isinstance(request, dict):
        raise DeployError("stdin is not a JSON object", where="stdin", fix="", kind="bad-request")
    return request


def refusal(failure: DeployError) -> dict[str, Any]:
    """The answer for a failure."""
    return {"ok": False, "error": failure.as_told()}


def stay(_arguments: Sequence[str]) -> int:
    """Answer until the reader is gone."""
    for line in _lines_of_stdin():
        requests.begins()
        _answer_line(line)
    return 0


def _answer_line(line: bytes) -> None:
    try:
        document = json.loads(line)
        which, verb, request = document["id"], str(document["verb"]), dict(document["request"])
    except (ValueError, KeyError, TypeError) as wrong:
        tell(refusal(DeployError(f"not a request: {wrong}", where="stdin", fix="", kind="bad-request")))
        return
    if verb in ANSWERED_IN_PLACE:
        _say(which, answer_of(verb, request))
    elif streams(verb):
        _say(
            which,
            refusal(DeployError(f"{verb!r} has more than one answer", where="role stay", fix="", kind="unknown-verb")),
        )
    else:
        _answer_in_a_child(which, verb, request)


def _answer_in_a_child(which: object, verb: str, request: dict[str, object]) -> None:
    """Forked from here, where Python and the verb's modules are loaded already. Its end without an answer is one."""
    _load(verb)
    try:
        child = os.fork()
    except OSError as wrong:
        from orchestrator.node.os_errors import os_failure

        _say(which, refusal(os_failure(wrong, f"node verb {verb}")))
        return
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the next request is not for programs that it starts
            _say(which, answer_of(verb, request))
            status = 0
        finally:
            os._exit(status)
    if ended := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        how = f"a signal ({-ended})" if ended < 0 else f"status {ended}"
        fix = "check `dmesg` on the node for the out-of-memory killer"
        _say(
            which,
            refusal(DeployError(f"it ended with {how} and no answer", where=f"verb {verb}", fix=fix, kind="no-answer")),
        )


def _load(verb: str) -> None:
    """What verbs share is loaded once, not by each one's own process: two thirds of what a small verb costs."""
    with contextlib.suppress(Exception):  # the verb's own process tells of it
        _found(VERBS[verb])


def _say(which: object, answer: dict[str, Any] | None) -> None:
    tell({"id": which, **(answer or {})})


def _lines_of_stdin() -> Iterator[bytes]:
    parts: list[bytes] = []
    while select.select([0], [], [], IDLE_S)[0]:
        if not (more := os.read(0, 1 << 16)):
            return
        first, *others = more.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts)
            parts = [other]


def application() -> str:
    """The zip file we run from, or the folder that holds the package."""
    return os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def command(*words: str, at: str = "") -> list[str]:
    """argv that runs a verb or role with this interpreter. at: a copy of the application, this one by default.

    -EsS: the zip needs the standard library only, and starts quicker without anybody's site packages.
    """
    path = at or application()
    if os.path.isdir(path):
        start = (
            f"import sys; sys.path.insert(0, {path!r}); "
            "from orchestrator.node import dispatch; sys.exit(dispatch.serve(sys.argv[1:]))"
        )
        return [sys.executable, "-c", start, *words]
    return [sys.executable, "-EsS", path, *words]


def copy_beside(folder: str) -> str:
    """Put a copy of the zip application into a run's folder, so that cleaning a cache can't hurt a running agent.

    A checkout's folder is used in place.
    """
    source = application()
    if os.path.isdir(source):
        return source
    target = f"{folder}/agent.pyz"
    if not os.path.exists(target):
        import shutil  # brings the compressors, which no other process of a run needs

        temporary = f"{target}.{os.getpid()}.new"
        shutil.copyfile(source, temporary)
        os.rename(temporary, target)
    return target
