"""Every verb of the node application with the types of what it is asked and says. The reference lists their keys.

Apart from verbs.py, because a command imports the types of its own verbs alone.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping

from orchestrator.jobs import messages as job
from orchestrator.nettest import messages
from orchestrator.protocol import gauges, jobs, looks, staging, verbs
from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import Watch

REQUESTS: Mapping[str, type[Message]] = {
    "arm": verbs.ArmRequest,
    "go": verbs.GangRequest,
    "stop": verbs.StopRequest,
    "report": verbs.ReportRequest,
    "logs": verbs.LogsRequest,
    "lock": verbs.LockRequest,
    "history": verbs.HistoryRequest,
    "excerpt": verbs.ExcerptRequest,
    "staged": verbs.GangRequest,
    "ask": verbs.AskRequest,
    "stage": staging.StagingRequest,
    "check": staging.StagingRequest,
    "probe": looks.ProbeRequest,
    "prerequisites": looks.PrerequisitesRequest,
    "labels": looks.LabelsRequest,
    "figures": gauges.FiguresRequest,
    "listen": looks.ListenRequest,
    "dial": looks.DialRequest,
    "tune": jobs.TuneRequest,
    "tuned": looks.TunedRequest,
    "job": job.JobRequest,
    "rails": messages.RailsRequest,
    "same-root": jobs.SameRootRequest,
    "inspect": jobs.InspectRequest,
    "digests": jobs.DigestsRequest,
    "reblock": jobs.ReblockRequest,
    "download": jobs.HubRequest,
    "push-offer": jobs.OfferRequest,
    "push-receive": jobs.ReceiveRequest,
}
ANSWERS: Mapping[str, type[Message]] = {
    **verbs.ANSWERS,
    "prerequisites": looks.PrerequisitesAnswer,
    "labels": looks.LabelsAnswer,
    "figures": gauges.FiguresAnswer,
    "tune": jobs.TuneAnswer,
    "tuned": looks.Holdings,
    "same-root": jobs.SameRootAnswer,
    "inspect": jobs.InspectAnswer,
}
"""Not of `probe`: its answer is a snapshot (model/snapshot.py)."""
LISTS: Mapping[str, type[Message]] = {"dial": looks.Trial}
"""Verbs whose answer is a list of these."""
LINES: Mapping[str, type[Message]] = {
    "job": job.JobLine,
    "rails": messages.RailsLine,
    "listen": looks.Listening,
    "digests": jobs.DigestsLine,
    "reblock": jobs.ReblockLine,
    "download": jobs.HubLine,
}
"""Verbs that write lines of these while they work. Those of a push are in checkpoint/on_node/push/."""


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
