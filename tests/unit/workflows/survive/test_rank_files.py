"""A gang that was staged with per-rank weight files, some of which a node has lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.inventory import GangSpec, Overrides
from orchestrator.model.per_node import PerNode
from orchestrator.node.agent.staged_files import digest
from orchestrator.planning import per_rank
from orchestrator.planning.build import build_plan
from orchestrator.planning.digest import short_digest
from orchestrator.planning.options import HostFacts, PlanOptions
from orchestrator.planning.places import checkpoint_digest
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest, RankFiles
from orchestrator.protocol.staging import StagingRequest
from orchestrator.workflows.gang.staging import staging_requests
from orchestrator.workflows.plan.plan import launch_scripts
from orchestrator.workflows.survive import rank_files
from orchestrator.workflows.survive.rank_files import else_the_checkpoint

MODEL, STACK = "DeepSeek-R1-Channel-INT8", "sglang-0.5.23"
SPEC = replace(gang(), nodes=tuple(replace(node, presharded="/per-rank") for node in gang().nodes))
NAMES = tuple(node.name for node in SPEC.nodes)
FOLDER = f"{MODEL}-{STACK}-TP32-{checkpoint_digest({}, 'w')}"


def held(rank: int, **more: Any) -> RankFiles:
    files = RankFiles(
        folder=FOLDER, ranks=tuple(range(8 * rank, 8 * rank + 8)), key=f"sglang-0.5 0.5.23 {FOLDER}", complete=True
    )
    return replace(files, **more)


ANSWERS = {
    name: PrerequisitesAnswer(config="{}", weights="w", rank_files=(held(rank),)) for rank, name in enumerate(NAMES)
}


def staged(stack: str = STACK, image: str = "", **options: Any) -> Mapping[str, StagingRequest]:
    profile, its = load_profile(MODEL), load_stack(stack)
    if image:
        its = replace(its, install="docker", image=image)
    hosts = {name: HostFacts(config={}, weights="w", rank_files=one.rank_files) for name, one in ANSWERS.items()}
    plan = build_plan([SPEC], profile, its, topologies(SPEC), PlanOptions(hosts=hosts, **options))
    scripts = launch_scripts(plan)
    return staging_requests(SPEC, plan.gangs[0], scripts, plan_id=plan.plan_id, run_id="r", key="")


@dataclass
class Told:
    steps: list[str] = field(default_factory=list)

    def step(self, gang: str, words: str) -> None:
        self.steps.append(words)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Mapping[str, StagingRequest], list[str]]]:
    """(what is staged now, the messages) for nodes that answer like this; None: no answer."""

    def run(
        answers: Mapping[str, PrerequisitesAnswer | None], requests: Mapping[str, StagingRequest], spec: GangSpec = SPEC
    ) -> tuple[Mapping[str, StagingRequest], list[str]]:
        def ask(session: Any, verb: str, request: PrerequisitesRequest, *_: Any, **__: Any) -> PrerequisitesAnswer:
            assert (verb, request.presharded) == ("prerequisites", "/per-rank")
            assert request.model_path == f"/workspace/{MODEL}"
            answer = answers[session.spec.name]
            assert answer is not None
            return answer

        def on_every(one: Callable[[Any], bool], only: list[str]) -> PerNode[bool]:
            sessions = {node.name: SimpleNamespace(spec=node) for node in spec.nodes if answers[node.name]}
            return PerNode(values={name: one(sessions[name]) for name in only if name in sessions}, failures={})

        monkeypatch.setattr(rank_files, "ask", ask)
        told = Told()
        return else_the_checkpoint(SimpleNamespace(on_every=on_every), spec, requests, told), told.steps  # type: ignore[arg-type]

    return run


def test_where_all_are_there_they_are_read(start: Any) -> None:
    requests = staged()
    assert start(ANSWERS, requests) == (requests, [])
    assert per_rank.folder(requests["node0"].argv) == f"/per-rank/{FOLDER}"


@pytest.mark.parametrize(
    "node2",
    [
        pytest.param({"rank_files": ()}, id="the folder is gone"),
        pytest.param({"rank_files": (held(2, complete=False),)}, id="a file is gone"),
        pytest.param({"rank_files": (held(1),)}, id="they are another node's"),
        pytest.param({"weights": "others"}, id="the checkpoint is another one now"),
    ],
)
@pytest.mark.parametrize("image", ["", "sglang@sha256:" + "0" * 64])
def test_where_one_lacks_them_all_read_the_checkpoint(start: Any, node2: dict[str, Any], image: str) -> None:
    requests = staged(image=image)
    found, said = start({**ANSWERS, "node2": replace(ANSWERS["node2"], **node2)}, requests)
    (words,) = said
    assert "on node2: all nodes read the checkpoint" in words and f"checkpoint preshard --model {MODEL}" in words
    for name, request in found.items():
        was = requests[name]
        assert "presharded" in was.launch_script and "presharded" not in request.launch_script
        assert "/per-rank" not in request.launch_script
        assert not [word for word in request.argv if "presharded" in word or word in ("--load-format",)]
        assert request.argv == tuple(word for word in was.argv if word in request.argv)
        assert request.cache is not None and request.cache.presharded == ""
        assert request.launch_sha256 == digest(request.launch_script)
        left = [line for line in was.launch_script.split("\n") if line not in request.launch_script.split("\n")]
        assert len(left) == (5 if image else 4), "two flags, the sources of both, and what a container sees"


def test_a_node_that_does_not_answer_is_not_judged(start: Any) -> None:
    requests = staged()
    assert start({**ANSWERS, "node2": None}, requests) == (requests, [])


def test_a_folder_of_an_earlier_version_goes_on_as_it_was_staged(start: Any) -> None:
    requests = staged()
    old = f"{MODEL}-{STACK}-TP32-{short_digest({})}"
    was = {
        name: replace(one, cache=replace(one.cache, presharded=f"/per-rank/{old}"))  # type: ignore[type-var]
        for name, one in requests.items()
    }
    answers = {name: replace(one, rank_files=(held(rank, folder=old),)) for rank, (name, one) in
               enumerate(ANSWERS.items())}  # fmt: skip
    assert start(answers, was) == (was, [])


def test_what_an_operator_asked_the_engine_for_stays(start: Any) -> None:
    requests = staged()
    gone = {name: replace(one, rank_files=()) for name, one in ANSWERS.items()}
    own = replace(SPEC, nodes=tuple(replace(node, overrides=Overrides(args=("--load-format=presharded",)))
                                    for node in SPEC.nodes))  # fmt: skip
    assert start(gone, requests, own) == (requests, [])


def test_a_launch_script_that_is_not_ours_is_left_alone(start: Any) -> None:
    requests = {name: replace(one, launch_script="exec sglang\n") for name, one in staged().items()}
    assert start({**ANSWERS, "node2": replace(ANSWERS["node2"], rank_files=())}, requests) == (requests, [])


def test_a_start_without_per_rank_files_asks_nobody(start: Any) -> None:
    requests = staged(preshard=False, layout="", tensor_parallel=8, pipeline_parallel=4)
    assert all(one.cache is not None and not one.cache.presharded for one in requests.values())
    assert start(dict.fromkeys(NAMES), requests) == (requests, [])
