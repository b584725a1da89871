"""Every verb of the node application with the types of what it is asked and says. The reference lists their keys.

Apart from verbs.py, because a command imports the types of its own verbs alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.jobs import messages as job
from orchestrator.protocol import gauges, jobs, looks, page_cache, rails, staging, verbs, ways
from orchestrator.protocol.message import Message

REQUESTS: Mapping[str, type[Message]] = {
    **verbs.REQUESTS,
    "stage": staging.StagingRequest,
    "check": staging.StagingRequest,
    "probe": looks.ProbeRequest,
    "prerequisites": looks.PrerequisitesRequest,
    "labels": looks.LabelsRequest,
    "figures": gauges.FiguresRequest,
    "listen": ways.ListenRequest,
    "dial": ways.DialRequest,
    "tune": jobs.TuneRequest,
    "tuned": looks.TunedRequest,
    "job": job.JobRequest,
    "rails": rails.RailsRequest,
    "same-root": jobs.SameRootRequest,
    "inspect": jobs.InspectRequest,
    "digests": jobs.DigestsRequest,
    "weights-ahead": page_cache.WeightsAheadRequest,
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
LISTS: Mapping[str, type[Message]] = {"dial": ways.Dialed}
"""Verbs whose answer is a list of these."""
LINES: Mapping[str, type[Message]] = {
    "job": job.JobLine,
    "rails": rails.RailsLine,
    "listen": ways.Listening,
    "digests": jobs.DigestsLine,
    "weights-ahead": page_cache.WeightsAheadLine,
    "reblock": jobs.ReblockLine,
    "download": jobs.HubLine,
}
"""Verbs that write lines of these while they work. Those of a push are in checkpoint/on_node/push/."""
