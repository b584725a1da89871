"""What commits 30b3d37e and 71c7f46b staged, read as this release would have staged it; and what this one stages."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.messages import message
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of, staged

from orchestrator.gang.steps.staging import ReadBack, read_staged
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.secret_text import HIDDEN, shown_flags
from orchestrator.planning.facts_of_now import moved
from orchestrator.planning.older_staging import completed
from orchestrator.planning.plan_file import changes
from orchestrator.protocol.errors import Exit, NodeError, StagedByNewer
from orchestrator.protocol.planned import Layout, Transport
from orchestrator.protocol.staging import PROTOCOL, StagingRequest
from orchestrator.protocol.verbs import StagedAnswer
from orchestrator.topology.gpus import Machine

FOLDER = Path(__file__).parents[2] / "recorded" / "staged"
FILES = ("30b3d37e.json", "protocol-1.json", "71c7f46b.json")
OLD, NEW, BEFORE = (json.loads((FOLDER / name).read_text()) for name in FILES)
STACKS = {"in-docker": "tests/golden/plan/in-docker/stack.yml"}
RECORDED = [(stack, name) for stack, nodes in OLD.items() for name in nodes]
NODES = {node.name: node for node in gang().nodes}


def read(raw: dict[str, Any], node: NodeSpec) -> ReadBack:
    return read_staged(node, "gang0", message(StagedAnswer, raw))


def old(stack: str = "sglang-0.5.23", name: str = "node0", **change: Any) -> dict[str, Any]:
    raw: dict[str, Any] = copy.deepcopy(OLD[stack][name])
    raw["request"] |= change
    return raw


@pytest.mark.parametrize(("stack", "name"), RECORDED)
def test_an_old_request_has_the_types_that_a_new_one_has(stack: str, name: str) -> None:
    now = read(NEW[stack][name], NODES[name])
    assert (now.request.protocol, now.remarks) == (PROTOCOL, ())
    was = read(old(stack, name), NODES[name])
    assert was.request.protocol == PROTOCOL
    assert was.request.layout == now.request.layout
    assert was.request.graph_batch == now.request.graph_batch
    assert was.request.command == now.request.command
    assert (*was.request.command, *(word for words in was.request.flags for word in words)) == was.request.argv
    ours, theirs = was.request.network, now.request.network
    assert (ours.transport, ours.interface, ours.sockets, ours.address) == (
        theirs.transport, theirs.interface, theirs.sockets, theirs.address)  # fmt: skip
    assert (ours.hca, ours.gid_index, ours.gid_range, ours.ras) == (
        theirs.hca, theirs.gid_index, theirs.gid_range, theirs.ras)  # fmt: skip


@pytest.mark.parametrize(("stack", "name"), RECORDED)
def test_what_was_left_out_and_could_not_be_found_is_told_once(stack: str, name: str) -> None:
    was = read(old(stack, name), NODES[name])
    ignored, *unknown = was.remarks
    assert ignored.startswith("ignored, since this release has no such key: cache")
    assert unknown == ["not known: the UUIDs of its GPUs, so they are known by index alone"]
    again = {"request": json.loads(json.dumps(was.request.kept())), "launch_script": was.request.launch_script}
    assert read(again, NODES[name]) == ReadBack(was.request)


@pytest.mark.parametrize(("stack", "name"), [(stack, name) for stack, nodes in BEFORE.items() for name in nodes])
def test_the_same_plan_differs_in_nothing_from_what_was_staged_before_plans_were(stack: str, name: str) -> None:
    """Its requests had fewer keys of a plan: the sources of settings, and where each node would be asked."""
    was, spec = read(BEFORE[stack][name], NODES[name]), gang()
    plan = plan_of(spec, stack=STACKS.get(stack, stack))
    will = staged(spec, plan)[name]
    assert (was.remarks, was.request.plan_id) == ((), plan.plan_id)
    assert changes({name: was.request}, {name: will}) == ()
    assert was.request.launch_script == will.launch_script
    assert BEFORE[stack][name]["request"].keys() <= will.kept().keys(), "the release before reads all of its keys"
    read_again = message(StagingRequest, json.loads(json.dumps(will.kept())))
    assert read_again.kept() == will.kept()


def test_its_network_is_found_anew_as_that_of_a_new_one() -> None:
    node, facts = NODES["node0"], topologies(gang())["node0"]
    request = read(old(), node).request
    assert moved(request, Machine(node, facts)).words == ""
    env = {**request.env, "GLOO_SOCKET_IFNAME": "old0", "NCCL_SOCKET_IFNAME": "=old0", "NCCL_IB_HCA": "=mlx5_77:1"}
    renamed = read(old(env=env), node).request
    found = moved(renamed, Machine(node, facts))
    assert "interface old0 ->" in found.words
    assert "RDMA ports mlx5_77:1 ->" in found.words
    assert found.network == request.network


def test_it_differs_from_itself_in_nothing() -> None:
    request = read(old(), NODES["node0"]).request
    plain = message(StagingRequest, {**request.as_json(), "protocol": 0})
    assert changes({"node0": request}, {"node0": plain}) == ()


def test_a_secret_flag_is_hidden() -> None:
    argv = [*old()["request"]["argv"], "--hf-token", "hunter22", "--other-token=hunter23", "--flag", "a", "b"]
    flags = shown_flags(read(old(argv=argv), NODES["node0"]).request.flags)
    assert flags[-3:] == (("--hf-token", HIDDEN), ("--other-token", HIDDEN), ("--flag", "a", "b"))


def least(**more: Any) -> StagingRequest:
    base = {"gang": "g", "run_id": "r", "node": "n", "node_rank": 0, "nnodes": 2, "leader": {"port": 7700}}
    return message(StagingRequest, {**base, **more})


def test_what_says_nothing_is_unknown_and_not_guessed() -> None:
    found = completed(least(argv=["engine", "serve"], gpus=[0]), ())
    assert [words.partition(",")[0] for words in found.unknown] == [
        "the node's address", "the layout", "the UUIDs of its GPUs"]  # fmt: skip
    assert (found.request.layout, found.request.network.address) == (None, "")
    assert (found.request.command, found.request.flags) == (("engine", "serve"), ())


@pytest.mark.parametrize("value", ["x", "-1", "0", "9" * 30, "٣²"])
def test_a_degree_that_is_no_number_is_unknown(value: str) -> None:
    request = least(watch={"dialect": "sglang-0.5"}, argv=["python3", "--tp-size", value])
    assert completed(request, ()).request.layout is None


def test_an_engine_without_gpus_uses_no_nccl() -> None:
    request = least(device="cpu", watch={"dialect": "sglang-0.5"}, argv=["python3", "--tp-size=2"], tp_ranks=[0])
    found = completed(request, ()).request
    assert found.network.transport is Transport.NONE
    assert found.layout == Layout(tensor_parallel=2, nnodes=2, gpus_per_node=1)


def test_keys_that_were_staged_are_kept() -> None:
    layout = {"tensor_parallel": 4, "nnodes": 2, "gpus_per_node": 2}
    raw = least(argv=["python3", "--tp-size", "8"], watch={"dialect": "sglang-0.5"}, layout=layout)
    assert completed(raw, ("layout", "network")).request.layout == Layout(**layout)


def test_a_newer_protocol_is_refused_with_what_to_do() -> None:
    with pytest.raises(StagedByNewer) as refused:
        read(old(protocol=PROTOCOL + 1, gpus=None), NODES["node0"])
    assert "PLAN-OTHER-RELEASE" in refused.value.what
    assert (refused.value.exit_code, refused.value.where) == (Exit.INPUT, "node0")
    assert "`l40s-deploy down gang0`, then start it by `up` with --gang gang0 and a --model" in refused.value.fix


def test_without_a_protocol_it_is_of_the_first_one_whatever_keys_it_has() -> None:
    for stack, name in RECORDED:
        raw = copy.deepcopy(NEW[stack][name])
        del raw["request"]["protocol"]
        assert read(raw, NODES[name]) == read(NEW[stack][name], NODES[name])
    assert "protocol" not in old()["request"]
    assert read(old(protocol=0), NODES["node0"]) == read(old(), NODES["node0"])


@pytest.mark.parametrize("protocol", [-1, -(1 << 62), None, True, 1.5, "1", [1]], ids=repr)
def test_a_protocol_that_no_release_has_is_refused_with_what_to_do(protocol: object) -> None:
    with pytest.raises(NodeError, match=r"can't be read: StagingRequest\.protocol is") as refused:
        read(old(protocol=protocol), NODES["node0"])
    assert "wanted" in refused.value.what
    assert refused.value.where == "node0"
    assert "`l40s-deploy down gang0`, then start it by `up` with --gang gang0 and a --model" in refused.value.fix


def test_another_releases_keys_of_the_same_protocol_are_named_and_ignored() -> None:
    raw = copy.deepcopy(NEW["sglang-0.5.23"]["node0"])
    raw["request"] |= {f"key{number}": number for number in range(7)}
    assert read(raw, NODES["node0"]).remarks == (
        "ignored, since this release has no such key: key0, key1, key2, key3, key4 and 2 more",)  # fmt: skip
