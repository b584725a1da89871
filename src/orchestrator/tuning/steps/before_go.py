"""`up --check-kernels`: between *armed* and *go* the plan's kernels are tried; no rank starts where one is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.gang.steps.raising import BeforeGo, UpRequest, Watcher
from orchestrator.gang.steps.raising import StagedFleet as Standing
from orchestrator.model.errors import VerificationDiffers
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import lost_first
from orchestrator.protocol.staging import StagingRequest
from orchestrator.tuning.kernels import KernelVerdict, wrong_words
from orchestrator.tuning.steps import kernels


def checked_before(here: Standing, request: UpRequest, watcher: Watcher) -> BeforeGo:
    """What `raise_all` calls before a gang's ranks start."""

    def before(gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
        watcher.step(gang.name, "trying the plan's kernels in the engine's place")
        model = request.plan.model or next(iter(requests.values())).model
        done = kernels.check(here.fleet, gang, requests, here.topologies, model, lambda *_: None)
        if done.lost:
            raise lost_first(done.lost)
        what, fix = wrong_words(done.nodes)
        if what:
            raise VerificationDiffers(f"no rank was started: {what}", where=f"gang {gang.name}", fix=fix)
        results = [one for found in done.nodes.values() for one in found]
        unknown = sum(one.verdict is KernelVerdict.NOT_RUN for one in results)
        more = f"; {unknown} of {len(results)} were not run: `l40s-deploy stack check` says why" if unknown else ""
        watcher.step(gang.name, f"{len(results) - unknown} kernels are right{more}")

    return before
