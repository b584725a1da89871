"""Finds the verb, reads its request from stdin, writes its answer to stdout.

A verb is a module with `answer(request) -> JSON-able` or `stream(request) -> None` (writes stdout itself);
only the module of the verb that was asked for is imported, since a report must not wait for the rest.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from orchestrator.node.failure import Failure
from orchestrator.node.telling import tell

VERBS = {
    "probe": "orchestrator.node.look.probe",
    "figures": "orchestrator.node.verbs.figures",
    "labels": "orchestrator.node.look.labels",
    "prerequisites": "orchestrator.node.look.prerequisites",
    "tune": "orchestrator.tuning.on_node.tune",
    "tuned": "orchestrator.tuning.on_node.tuned",
    "stage": "orchestrator.node.verbs.stage",
    "check": "orchestrator.node.verbs.check",
    "arm": "orchestrator.node.verbs.arm",
    "go": "orchestrator.node.verbs.go",
    "stop": "orchestrator.node.verbs.stop",
    "report": "orchestrator.node.verbs.report",
    "logs": "orchestrator.node.verbs.logs",
    "lock": "orchestrator.node.verbs.lock",
    "history": "orchestrator.node.verbs.history",
    "excerpt": "orchestrator.node.verbs.excerpt",
    "staged": "orchestrator.node.verbs.staged",
    "ask": "orchestrator.node.verbs.ask",
    "job": "orchestrator.jobs.on_node.job",
    "rails": "orchestrator.nettest.on_node.rails",
    "listen": "orchestrator.node.network.listen",
    "dial": "orchestrator.node.network.dial",
    "push-offer": "orchestrator.checkpoint.on_node.push.offer",
    "push-receive": "orchestrator.checkpoint.on_node.push.receive",
    "same-root": "orchestrator.node.verbs.same_root",
    "digests": "orchestrator.checkpoint.on_node.digests",
    "weights-ahead": "orchestrator.node.cache.ahead",
    "reblock": "orchestrator.checkpoint.on_node.prove",
    "inspect": "orchestrator.checkpoint.on_node.directory",
    "download": "orchestrator.checkpoint.on_node.download",
}

PROCESSES = {
    "agent": "orchestrator.node.agent.agent",
    "gpus": "orchestrator.node.engine.gpus",
    "gpu-gauges": "orchestrator.node.look.gauges",
    "hub-client": "orchestrator.checkpoint.on_node.hub_client",
    "read-ahead": "orchestrator.node.cache.reader",
    "stay": "orchestrator.node.verbs.stay",
}
"""Roles that live on: a module with `run(arguments) -> exit status`; no request, no answer."""


def serve(argv: Sequence[str]) -> int:
    """Run one verb. Told failures are answers, so the exit status is 0 for them; 2 for an unknown verb."""
    name = argv[0] if argv else ""
    if name in PROCESSES:
        return int(importlib.import_module(PROCESSES[name]).run(argv[1:]))
    if name not in VERBS:
        tell(answer_of(name, {}))
        return 2
    try:
        _run(name)
    except BrokenPipeError:
        return 1
    return 0


def _run(name: str) -> None:
    try:
        request = _request()
        if streams(name):
            importlib.import_module(VERBS[name]).stream(request)
        else:
            tell(answer_of(name, request))
    except BrokenPipeError:
        raise
    except Failure as failure:
        tell(refusal(failure))
    except Exception as defect:
        tell(_defect(name, defect))


def streams(name: str) -> bool:
    """Whether a verb writes its answers itself; its module is loaded by this."""
    return name in VERBS and hasattr(importlib.import_module(VERBS[name]), "stream")


def answer_of(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """A verb's answer to a request, as it is written."""
    if name not in VERBS:
        return refusal(Failure("unknown-verb", f"no verb {name!r}; known: {', '.join(VERBS)}", "node application"))
    try:
        return {"ok": True, "value": importlib.import_module(VERBS[name]).answer(request)}
    except Failure as failure:
        return refusal(failure)
    except Exception as defect:
        return _defect(name, defect)


def _request() -> dict[str, Any]:
    text = sys.stdin.buffer.read()
    try:
        request = json.loads(text or b"{}")
    except ValueError as wrong:
        raise Failure("bad-request", f"stdin is not JSON: {wrong}", "stdin") from None
    if not isinstance(request, dict):
        raise Failure("bad-request", "stdin is not a JSON object", "stdin")
    return request


def refusal(failure: Failure) -> dict[str, Any]:
    """The answer for a failure."""
    return {"ok": False, "error": failure.as_json()}


def _defect(verb: str, defect: Exception) -> dict[str, Any]:
    import traceback

    failure = Failure(
        "defect",
        f"{type(defect).__name__}: {defect}",
        f"node verb {verb}",
        "report this bug with the lines in `trace`",
    )
    trace = "".join(traceback.format_exception(defect))
    return {"ok": False, "error": {**failure.as_json(), "trace": trace}}
