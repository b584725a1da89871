"""From an inventory to a plan: which gangs, which stack, which facts; snapshots are replaced, the rest is real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.support.reference_cluster import gang, topologies, topology
from tests.support.reference_plan import plan_of

from l40s_lab.node.models import config
from orchestrator.doctor.steps.doctor import refuse
from orchestrator.loading.profiles import load_profile
from orchestrator.model.inventory import Inventory, NodeSpec, Overrides
from orchestrator.model.per_node import PerNode
from orchestrator.model.plan import Plan
from orchestrator.model.profile import ModelProfile, ModelRefusal, Stack
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gpu, Topology
from orchestrator.planning.host import HostFacts
from orchestrator.planning.plan_file import refuse_changes
from orchestrator.planning.steps import plan as workflow
from orchestrator.planning.steps.exports import compose_files
from orchestrator.planning.steps.plan import (
    PlanRequest,
    StackChoice,
    chosen_stack,
    host_facts,
    make_plan,
    read_request,
    write_plan,
)
from orchestrator.protocol.errors import DeployError, FindingsError, InputError, Unreachable, VerificationDiffers
from orchestrator.protocol.looks import PrerequisitesAnswer
from orchestrator.records.documents import keep_least_free
from orchestrator.remote.fleet import Fleet

INVENTORY = Inventory(path="hosts.yml", gangs=(gang(), gang(name="gang1", first=4)))
FINE = load_profile("DeepSeek-V3-0324-Block64x64")
NO_FLEET = cast(Fleet, None)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were looked at; each looks like the reference machine."""
    names: list[str] = []

    def look(_: Fleet, nodes: Iterable[NodeSpec], stack: Stack) -> PerNode[Snapshot]:
        assert stack.device == "cuda"
        names.extend(node.name for node in nodes)
        host: Mapping[str, Any] = {"user": "root", "home": "/root", "cpu_count": 2}
        return PerNode({name: Snapshot(node=name, taken_at=0.0, files={}, host=host) for name in names}, {})

    monkeypatch.setattr(workflow, "look", look)
    monkeypatch.setattr(workflow, "prerequisites", lambda *_: {})
    monkeypatch.setattr(workflow, "build", lambda snapshot: topology(snapshot.node, int(snapshot.node[4:])))
    return names


def test_only_the_gangs_that_are_asked_for_are_looked_at_and_planned(looked: list[str]) -> None:
    planned = make_plan(INVENTORY, PlanRequest(model=FINE.name, gangs=("gang1",)), NO_FLEET)
    assert looked == ["node4", "node5", "node6", "node7"]
    assert [each.name for each in planned.plan.gangs] == ["gang1"]
    assert set(planned.topologies) == set(planned.snapshots) == set(looked)


def test_a_plan_knows_what_its_own_runs_left_free(looked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` and `bench` keep it by the plan's id; that of another plan says nothing of this one."""
    request = PlanRequest(model=FINE.name, gangs=("gang1",), stack="sglang-0.5.23")
    first = make_plan(INVENTORY, request, NO_FLEET).plan
    keep_least_free("gang1", "another", 2 << 30)
    assert make_plan(INVENTORY, request, NO_FLEET).plan == first
    keep_least_free("gang1", first.plan_id, 6 << 30)
    again = make_plan(INVENTORY, request, NO_FLEET).plan
    assert again.plan_id == first.plan_id and looked
    memory = again.gangs[0].memory
    assert memory.least_free == 6 << 30 and (memory.next_fraction or 0) > (memory.static_fraction or 1)
    monkeypatch.setattr(workflow, "least_free", lambda *_: None)
    assert make_plan(INVENTORY, request, NO_FLEET).plan.gangs[0].memory.least_free is None


def test_gpus_that_are_no_l40s_decide_about_the_stack(looked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused on what is assumed, and served by what is there: the nodes are looked at again with that stack."""
    profile = _refused(("0.5", 89))
    seen = {None: StackChoice("vllm-0.33.0"), "sglang-0.5.23": StackChoice("sglang-0.5.23")}

    def choose(_: object, __: object, asked: str | None, gpus: object = ()) -> StackChoice:
        return StackChoice("sglang-0.5.23", "why") if gpus and not asked else seen[asked]

    monkeypatch.setattr(workflow, "load_profile", lambda _: profile)
    monkeypatch.setattr(workflow, "chosen_stack", choose)
    planned = make_plan(INVENTORY, PlanRequest(model=profile.name, gangs=("gang1",), tp=8, pp=4), NO_FLEET)
    assert (planned.stack.name, planned.why, len(looked)) == ("sglang-0.5.23", "why", 8)


def test_a_node_that_can_not_be_read_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: dict[str, DeployError] = {"node2": Unreachable("no answer", where="node2", fix="look")}
    monkeypatch.setattr(workflow, "look", lambda *_: PerNode({}, failures))
    with pytest.raises(Unreachable):
        make_plan(INVENTORY, PlanRequest(model=FINE.name), NO_FLEET)


def test_wrong_names_are_told_before_anybody_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "look", lambda *_: pytest.fail("looked"))
    for request in (
        PlanRequest(model="nope"),
        PlanRequest(model=FINE.name, stack="nope"),
        PlanRequest(model=FINE.name, gangs=("gang9",)),
    ):
        with pytest.raises(InputError):
            make_plan(INVENTORY, request, NO_FLEET)


@pytest.mark.parametrize(
    ("asked", "named", "model", "stack", "why"),
    [
        (None, None, "DeepSeek-V3-0324-Block64x64", "sglang-0.4.4-l40s", "tried with this model"),
        (None, None, "DeepSeek-R1-Channel-INT8", "sglang-0.4.4-l40s", "tried with this model"),
        (None, None, "tiny-deepseek-v3", "sglang-0.5.23", "tried with this model"),
        (None, None, "tiny-qwen3-moe", "vllm-0.33.0", "tried with this model"),
        (None, None, "GLM-4.6-FP8", "sglang-0.5.23", "the first whose engine can serve it"),
        (None, "sglang-0.5.23", "DeepSeek-V3-0324-Block64x64", "sglang-0.5.23", ""),
        ("mine.yml", "sglang-0.5.23", "DeepSeek-V3-0324-Block64x64", "mine.yml", ""),
    ],
)
def test_the_stack(asked: str | None, named: str | None, model: str, stack: str, why: str) -> None:
    found = chosen_stack((gang(stack=named),), load_profile(model), asked)
    assert found.name == stack
    assert why in found.why if why else not found.why


def _refused(*given: tuple[str, int]) -> ModelProfile:
    refusals = tuple(
        ModelRefusal(versions=versions, below=below, reason=f"no {versions}", source="seen")
        for versions, below in given
    )
    return replace(load_profile("GLM-4.6-FP8"), refused=refusals)


@pytest.mark.parametrize(
    ("refusals", "stack", "why"),
    [
        ((("0.5", 0),), "sglang-0.4.4-l40s", "sglang-0.5.23 can't: no 0.5"),
        ((("0.5", 0), ("0.4", 0)), "vllm-0.33.0", "sglang-0.4.4-l40s can't: no 0.4"),
        ((("0.5", 90), ("0.4", 0)), "vllm-0.33.0", "sglang-0.5.23 can't: no 0.5"),
        ((("0.5", 80), ("0.4", 0)), "sglang-0.5.23", "the first whose engine can serve it"),
        ((("", 90),), "sglang-0.5.23", "no engine here can serve GLM-4.6-FP8"),
    ],
)
def test_without_a_stack_the_first_is_taken_whose_engine_can_serve_the_model_here(
    refusals: tuple[tuple[str, int], ...], stack: str, why: str
) -> None:
    """On an L40S, of compute capability 8.9; where none can, the plan gives the first one's reason."""
    found = chosen_stack((gang(),), _refused(*refusals), None)
    assert (found.name, why in found.why) == (stack, True)


def test_what_can_serve_it_is_decided_by_the_gpus_that_are_there() -> None:
    hopper = Gpu(index=0, address="", key="", switch="", numa_node=0, name="NVIDIA H100 80GB HBM3", sm=90)
    profile = _refused(("0.5", 90))
    assert chosen_stack((gang(),), profile, None).name == "sglang-0.4.4-l40s"
    assert chosen_stack((gang(),), profile, None, [hopper]).name == "sglang-0.5.23"


def test_nodes_that_name_different_stacks_are_refused() -> None:
    spec = gang(2, stack="sglang-0.5.23")
    mixed = replace(spec, nodes=(spec.nodes[0], replace(spec.nodes[1], stack=None)))
    with pytest.raises(InputError) as caught:
        chosen_stack((mixed,), FINE, None)
    assert caught.value.where == "inventory: l40s_stack"


@pytest.mark.parametrize(
    ("host", "told", "facts"),
    [
        ({"user": "ann", "home": "/home/ann", "cpu_count": 4}, {},
         HostFacts(user="ann", home="/home/ann", cpu_count=4)),
        ({}, {}, HostFacts()),
        ({"user": "", "home": "home", "cpu_count": 0}, {"glibc": ""}, HostFacts()),
        ({"user": None, "home": 5, "cpu_count": "many"}, {}, HostFacts()),
        ({}, {"config": '{"a": 1}', "engine": True, "engine_python": "3.11.2", "glibc": "2.36"},
         HostFacts(config={"a": 1}, engine=True, engine_python="3.11.2", glibc="2.36")),
        ({}, {"config": None, "config_error": "ENOENT"}, HostFacts(config_error="ENOENT")),
        ({}, {"config": "{"}, HostFacts(config_error="it is not JSON")),
        ({}, {"config": "[]"}, HostFacts(config_error="it is not a JSON object")),
    ],
)  # fmt: skip
def test_what_a_node_says_about_itself_is_taken_with_care(
    host: dict[str, object], told: dict[str, Any], facts: HostFacts
) -> None:
    assert host_facts(Snapshot(node="n", taken_at=0.0, files={}, host=host), PrerequisitesAnswer(**told)) == facts


def test_a_checkpoint_that_is_not_the_profiles_is_refused(looked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stock = json.dumps(config(load_profile("DeepSeek-V3-0324")))
    told = {"node2": PrerequisitesAnswer(config=stock)}
    monkeypatch.setattr(workflow, "prerequisites", lambda *_: told)
    with pytest.raises(InputError) as caught:
        make_plan(INVENTORY, PlanRequest(model=FINE.name, gangs=("gang0",)), NO_FLEET)
    assert caught.value.where == f"node2: /workspace/{FINE.directory}/config.json"
    assert "weight_block_size is [128, 128], the profile has [64, 64]" in caught.value.what
    assert "--model DeepSeek-V3-0324" in caught.value.fix
    assert looked


def test_what_contradicts_the_stack_stops_up_and_not_plan(looked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "prerequisites", lambda *_: {"node1": PrerequisitesAnswer(glibc="2.31")})
    plan = make_plan(INVENTORY, PlanRequest(model=FINE.name, stack="sglang-0.5.23"), NO_FLEET).plan
    assert looked
    assert plan.findings[0].id == "GLIBC-OLD"
    with pytest.raises(FindingsError) as caught:
        refuse(plan.findings)
    assert caught.value.where == "node node1"
    assert "2.31" in caught.value.what
    refuse(plan.findings[1:])


REQUEST = PlanRequest(model="DeepSeek-V3-0324-Block64x64", tp=32, gangs=("gang0",), extra_args=("--enable-metrics",))


def plan(change: Callable[[Topology], Topology] = lambda same: same, **settings: Any) -> Plan:
    spec = gang(**settings)
    facts = topologies(spec)
    facts["node2"] = change(facts["node2"])
    return plan_of(spec, facts=facts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_plan(path, plan(overrides=Overrides(env=(("HF_TOKEN", "hf_secret"),))), REQUEST)
    return path


def test_it_holds_what_was_asked_and_no_secret(file: Path) -> None:
    request = read_request(file)
    assert replace(request, saved=None) == REQUEST
    assert "hf_secret" not in file.read_text()


def test_the_same_cluster_may_go_on(file: Path) -> None:
    saved = read_request(file).saved
    assert saved is not None
    refuse_changes(saved, plan(overrides=Overrides(env=(("HF_TOKEN", "hf_secret"),))))


@pytest.mark.parametrize(
    ("change", "settings", "says"),
    [
        (lambda t: replace(t, rdma=t.rdma[1:]), {}, "facts have changed since: node2: rdma ports was mlx5_0:1"),
        (lambda t: replace(t, driver="590.1"), {}, "node2: driver was not there, is now 590.1"),
        (lambda t: t, {"model_root": "/srv"},
         "stack or l40s-deploy has changed since: node0: --model-path"),
        (lambda t: t, {"overrides": Overrides(env=(("HF_TOKEN", "hf_other"),))},
         "the facts are the same, but the inventory, profile, stack or l40s-deploy has changed since: it was plan "),
    ],
)  # fmt: skip
def test_what_changed_is_named_with_then_and_now(
    file: Path, change: Callable[[Topology], Topology], settings: dict[str, Any], says: str
) -> None:
    saved = read_request(file).saved
    assert saved is not None
    secret = {"overrides": Overrides(env=(("HF_TOKEN", "hf_secret"),))}
    with pytest.raises(VerificationDiffers) as caught:
        refuse_changes(saved, plan(change, **{**secret, **settings}))
    assert says in caught.value.what
    assert "hf_" not in caught.value.what
    assert caught.value.where == str(file)


def test_many_changes_are_counted(file: Path) -> None:
    saved = read_request(file).saved
    assert saved is not None
    with pytest.raises(VerificationDiffers, match=r"; and \d+ more"):
        refuse_changes(saved, replace(plan(), facts=()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "this is not a plan"),
        ("[]", "this is not a plan"),
        ("{}", "this is not a plan: KeyError('format')"),
        ('{"format": 99}', "found format 99, wanted 1"),
        ('{"format": 1, "plan_id": "x", "facts": [], "nodes": [], "request": {"model": 5}}', "this is not a plan"),
        ('{"format": 1, "plan_id": "x", "facts": 5, "nodes": [], "request": {}}', "this is not a plan"),
    ],
)
def test_files_that_are_no_plans(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_request(path)
    assert says in caught.value.what
    assert caught.value.where == str(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_request(tmp_path / "plan.json")


def test_a_compose_file_says_what_the_plan_says() -> None:
    evil = Overrides(env=(("NCCL_PRICE", "5$ \n: {"), ("HF_TOKEN", "hf_secret")))
    plan = plan_of(gang(overrides=evil))
    engine = yaml.safe_load(compose_files(plan)["node1"])["services"]["engine"]
    node = plan.gangs[0].nodes[1]
    assert engine["command"] == ["python3", *node.argv[1:]]
    assert engine["environment"]["NCCL_IB_HCA"] == dict(node.env)["NCCL_IB_HCA"]
    assert engine["environment"]["NCCL_PRICE"] == "5$$ \n: {"
    assert engine["environment"]["HF_TOKEN"] == "${HF_TOKEN:?put it into .env}"
    assert (engine["restart"], engine["network_mode"], engine["devices"]) == ("no", "host", ["/dev/infiniband"])
    gpus = engine["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    assert gpus == [str(gpu) for gpu in node.gpus]
