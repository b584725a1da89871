"""`up --nettest`: between *armed* and *go* the network is tested, and a slow one keeps the ranks from starting."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.gang.steps.raising import BeforeGo, UpRequest, Watcher
from orchestrator.gang.steps.raising import StagedFleet as Standing
from orchestrator.model.errors import FindingsError, VerificationDiffers
from orchestrator.model.inventory import GangSpec
from orchestrator.nettest.report import findings
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.verdict import NettestVerdict
from orchestrator.protocol.staging import StagingRequest

_WORDS = {
    NettestVerdict.OK: "the network is ok, its data right",
    NettestVerdict.NONE: "data is right; the speed was measured and not judged: "
    "nobody knows what to expect of this network",
}


def tested_before(enough: float) -> Callable[[Standing, UpRequest, Watcher], BeforeGo]:
    """What makes the call before a gang's ranks start. enough: the share of the expected speed that must be reached."""

    def made(here: Standing, request: UpRequest, watcher: Watcher) -> BeforeGo:
        def before(gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
            if sum(len(one.tp_ranks) for one in requests.values()) < 2:
                return
            watcher.step(gang.name, "testing the network in the engine's place")
            shape = nettest.shape_of(request.plan.model, requests)
            ground = nettest.NettestSetup(gang=gang, requests=requests, topologies=here.topologies, shape=shape)
            tested = nettest.test(here.fleet, ground, enough=enough, progress=lambda *_: None)
            if tested.result.verdict is NettestVerdict.FAILED:
                wrong = findings(tested.result)[0]
                raise FindingsError(
                    f"no rank was started: {wrong.id}: {wrong.title}", where=f"gang {gang.name}", fix=wrong.fix
                )
            if tested.result.verdict is NettestVerdict.SLOW:
                raise VerificationDiffers(
                    f"the network is slow, so no rank was started: {nettest.why_slow(tested)}",
                    where=f"gang {gang.name}",
                    fix="run l40s-deploy nettest to see every figure; without --nettest the gang starts anyway",
                )
            watcher.step(gang.name, f"{_WORDS[tested.result.verdict]} ({tested.result.seconds:.0f} s)")

        return before

    return made
