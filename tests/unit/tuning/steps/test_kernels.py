"""`stack check` and `up --check-kernels`: what each node is asked, and what its verdicts lead to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.local_gang import Notes
from tests.support.reference_cluster import gang, topologies
from tests.unit.nettest.steps.test_nettest import LOST, Fleet

from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.up_operation import UpRequest
from orchestrator.jobs import run as jobs
from orchestrator.jobs.messages import JobRequest
from orchestrator.model.inventory import Inventory
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, Exit, VerificationDiffers
from orchestrator.protocol.message import parsed
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.tuning.commands import check as verb
from orchestrator.tuning.messages import KernelLine, KernelsOrder
from orchestrator.tuning.steps import kernels

MODEL, GANG = "DeepSeek-V3-0324-Block64x64", gang(nodes=2)
LAYOUT = Layout(tensor_parallel=16, nnodes=2, gpus_per_node=8)
REQUESTS = {
    node.name: StagingRequest(
        gang="gang0", run_id="r", node=node.name, node_rank=node.node_rank, nnodes=2, leader=Endpoint(port=1),
        model=MODEL, stack="sglang-0.5.23", layout=LAYOUT, gpus=tuple(range(8)), tp_ranks=tuple(range(8)),
    )
    for node in GANG.nodes
}  # fmt: skip
FAILS = "OutOfResources: out of resource: shared memory, Required: 102400, Hardware limit: 101376."


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[JobRequest]]:
    """Each node says its verdict of every kernel; `lost` for one that is."""

    def made(**verdicts: str) -> list[JobRequest]:
        asked: list[JobRequest] = []

        def messages(session: Any, verb: str, request: JobRequest, kind: object, *_: object) -> Iterator[KernelLine]:
            asked.append(request)
            verdict = verdicts[session.spec.name]
            if verdict == "lost":
                raise LOST
            for case in order(request).cases:
                text = FAILS if verdict == "fails" else "no sgl_kernel" if verdict == "not-run" else ""
                yield KernelLine(kernel=case.id, verdict=verdict, error=0.003, us=9.0, text=text)
            yield KernelLine(ended=0)

        monkeypatch.setattr(jobs, "messages", messages)
        monkeypatch.setattr(jobs, "request_keys", lambda *_: {"state_dir": "/s", "gang": "gang0"})
        monkeypatch.setattr(kernels, "fence", lambda *_: "token")
        return asked

    return made


def order(request: JobRequest) -> KernelsOrder:
    found = KernelsOrder.read(parsed(request.order.files["order.json"]))
    assert isinstance(found, KernelsOrder)
    return found


def check(*_: object, **__: object) -> tuple[kernels.CheckedGang, ...]:
    return (kernels.check(Fleet(), GANG, REQUESTS, topologies(GANG), MODEL, lambda *_: None),)  # type: ignore[arg-type]


def test_a_node_is_asked_for_the_plans_kernels_on_its_first_gpu(nodes: Callable[..., list[JobRequest]]) -> None:
    asked = nodes(node0="right", node1="right")
    check()
    assert len(asked) == 2
    for request in asked:
        run, said = request.order.run, order(request)
        assert run is not None and run.gpus == (0,) and request.token == "token"
        assert (said.device, said.sm, said.shared) == ("cuda", 89, 101376)
        assert {"extend", "decode", "absorb", "linear", "moe"} <= {case.kernel for case in said.cases}
        assert {"kernels.py", "tune.py"} < request.order.files.keys()


def test_beside_an_engine_only_a_gpu_that_nobody_uses_is_taken(nodes: Callable[..., list[JobRequest]]) -> None:
    seen = topologies(GANG)
    used = replace(seen["node0"], gpus=tuple(replace(gpu, memory_used=40 << 30) for gpu in seen["node0"].gpus))
    shared = replace(seen["node1"], gpus=tuple(replace(gpu, memory_used=40 << 30) for gpu in seen["node1"].gpus[:7]))
    last = seen["node1"].gpus[7]
    shared = replace(shared, gpus=(*shared.gpus, replace(last, memory_total=48 << 30, memory_used=0, processes=())))
    idle = kernels.on_idle_gpus(REQUESTS, {"node0": used, "node1": shared})
    assert {name: (request.gpus, request.gpu_uuids) for name, request in idle.items()} == {
        "node1": ((7,), (last.uuid,))
    }
    without = {name: replace(request, device="cpu") for name, request in REQUESTS.items()}
    assert kernels.on_idle_gpus(without, {}) == without
    asked = nodes(node0="right", node1="right")
    kernels.check(Fleet(), GANG, idle | {"node0": REQUESTS["node0"]}, seen, MODEL, lambda *_: None, spared=True)  # type: ignore[arg-type]
    assert all(request.order.spared for request in asked)


@pytest.mark.parametrize(
    ("verdicts", "code", "words"),
    [
        (("right", "right"), Exit.DONE, "right"),
        (("right", "wrong"), Exit.DIFFERS, "wrong on node1"),
        (("fails", "right"), Exit.DIFFERS, "SM89-TRITON-TILES"),
        (("fails", "lost"), Exit.DIFFERS, "no answer for 15 s"),
        (("right", "lost"), Exit.UNREACHABLE, "no answer for 15 s"),
        (("right", "not-run"), Exit.FINDINGS, "no sgl_kernel"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_gravest_verdict_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nodes: Callable[..., list[JobRequest]],
    verdicts: tuple[str, str], code: Exit, words: str, as_json: bool,
) -> None:  # fmt: skip
    nodes(node0=verdicts[0], node1=verdicts[1])
    monkeypatch.setattr(verb, "open_inventory", lambda *_: Inventory(path="hosts.yml", gangs=()))
    monkeypatch.setattr(kernels, "run_now", check)
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    args = parser.parse_args(["--model", MODEL, *(["--json"] if as_json else [])])
    assert verb.run(args, Screen(as_json=as_json)) == code
    out = capsys.readouterr().out
    if not as_json:
        assert words in " ".join(out.split())
        return
    document = json.loads(out)
    assert {one["name"] for one in document["nodes"]} | document["lost"].keys() == {"node0", "node1"}
    for node in document["nodes"]:
        verdict = dict(zip(("node0", "node1"), verdicts, strict=True))[node["name"]]
        assert {one["verdict"] for one in node["kernels"]} == {verdict} and not node["stand_in"]
        assert (node["kernels"][0]["cause"] or {}).get("id") == ("SM89-TRITON-TILES" if verdict == "fails" else None)


@pytest.mark.parametrize(
    ("verdict", "kind", "words"),
    [
        ("right", None, "kernels are right"),
        ("not-run", None, "were not run"),
        ("wrong", VerificationDiffers, "no rank was started: node1: Triton's own GEMM"),
        ("fails", VerificationDiffers, "SM89-TRITON-TILES"),
        ("lost", DeployError, "no answer for 15 s"),
    ],
)
def test_before_a_start_only_what_is_wrong_refuses(
    nodes: Callable[..., list[JobRequest]], verdict: str, kind: type[DeployError] | None, words: str
) -> None:
    nodes(node0="right", node1=verdict)
    notes, request = Notes(), UpRequest(plan=PlanRequest(model=MODEL))
    operation = SimpleNamespace(fleet=Fleet(), topologies=topologies(GANG), request=request, watcher=notes)
    before = partial(kernels.checked_before, operation)  # type: ignore[arg-type]
    if kind is None:
        before(GANG, REQUESTS)
        assert words in notes.steps[-1]
        return
    with pytest.raises(kind, match=words):
        before(GANG, REQUESTS)
