"""What forbids the start that follows forbids the stop: each check at each verb leaves the gang serving."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import rehearse_restart, restart
from tests.support.local_gang import Local, LocalGang, Notes
from tests.support.reference_cluster import topology
from tests.support.turns import by_turns
from tests.unit.gang.steps.test_up import up, with_env

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import Examination
from orchestrator.gang.steps import checks
from orchestrator.gang.steps import restart as restart_module
from orchestrator.gang.steps.checks import against_on_nodes, against_starts, say_gone
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.restart_sequence import RESTART, ROLLING, RestartRequest, RestartVerb
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.gang.steps.staging import Staged, other_checkpoint
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.node.agent import weights
from orchestrator.protocol.errors import DeployError, Exit, FindingsError, InputError
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.protocol.verbs import CheckAnswer

Verb = Callable[["LocalGang", pytest.MonkeyPatch], object]
ECC = Finding(
    id="GPU-HEALTH", severity=Severity.STOP, node="node1", title="has 2 uncorrectable memory errors", fix="look"
)


@contextmanager
def away(path: Path) -> Iterator[None]:
    aside = path.rename(path.with_name("away"))
    yield
    aside.rename(path)


@contextmanager
def rewritten(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    yield
    path.write_text(before)


def model(gang: LocalGang) -> Path:
    """Node 1's own copy."""
    return gang.folder / "of-node1"


@contextmanager
def stranger(gang: LocalGang) -> Iterator[None]:
    """A listener on a port that the engine takes, beside the gang's own."""
    with socket.create_server(("127.0.0.1", gang.plan().gangs[0].http_port)):
        yield


CHECKS: dict[str, tuple[Callable[[LocalGang], AbstractContextManager[None]], str, str]] = {
    "the model is gone": (lambda gang: away(model(gang)), "node1: ", "does not exist"),
    "config.json is gone": (lambda gang: away(model(gang) / "config.json"), "node1: ", "has no config.json"),
    "config.json is broken": (lambda gang: rewritten(model(gang) / "config.json", "{"), "node1: ", "can't be used"),
    "another config.json": (
        lambda gang: rewritten(model(gang) / "config.json", '{"layers": 2}'),
        "node1: ",
        "config.json is not the one that node0 has",
    ),
    "another index": (
        lambda gang: rewritten(model(gang) / weights.INDEX, '{"weight_map": {"a": "2.safetensors"}}'),
        "node1: ",
        "model.safetensors.index.json is not the one that node0 has",
    ),
    "the stack is gone": (lambda gang: away(gang.folder / "venv"), "node", "the engine's Python does not exist"),
    "the port is a stranger's": (stranger, "node0: port", "in use by pid"),
}


def serving(local: Local, monkeypatch: pytest.MonkeyPatch) -> LocalGang:
    """A gang that has served two plans; each node has its copy of the model, and a Python that can be moved away."""
    gang = local()
    (gang.model / weights.INDEX).write_text('{"weight_map": {"a": "1.safetensors"}}')
    shutil.copytree(gang.model, model(gang))
    gang.changes[1] = {"model_path": str(model(gang))}
    python = gang.folder / "venv"
    python.symlink_to(gang.staging(0)["argv"][0])
    plan = gang.plan("plan1")
    (one,) = plan.gangs
    named: dict[str, Any] = {"command": (str(python), *one.leader.command[1:]), "venv_python": str(python)}
    nodes = tuple(replace(node, **named) for node in one.nodes)
    plan = replace(plan, gangs=(replace(one, nodes=nodes),))
    monkeypatch.setattr(gang, "plan", lambda: plan)
    up(gang, plan, monkeypatch)
    up(gang, with_env(replace(plan, plan_id="plan2"), NEW="2"), monkeypatch, replace_it=True)
    return gang


def rolled(gang: LocalGang, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(restart_module._Restart, "refuse_too_few", lambda *_: None)
    (one,) = gang.inventory.gangs
    absent = GangSpec(
        name="gang1", nodes=tuple(replace(node, name=f"{node.name}b", gang="gang1") for node in one.nodes)
    )
    two = Inventory(path="hosts.yml", gangs=(one, absent))
    return restart(two, RestartRequest(verb=ROLLING, gangs=("gang0",), without_router=True), Notes())


def changed(gang: LocalGang, monkeypatch: pytest.MonkeyPatch) -> object:
    """As a guard's return to all nodes does, too."""
    plan = with_env(replace(gang.plan(), plan_id="plan3"), NEW="3")
    return up(gang, plan, monkeypatch, replace_it=True)


def typed(verb: RestartVerb, carry_out: Callable[..., object] = restart, **words: Any) -> Verb:
    return lambda gang, _: carry_out(gang.inventory, RestartRequest(verb=verb, **words), Notes())


VERBS: dict[str, Verb] = {
    "restart": typed(RESTART, now=True),
    "restart --rolling": rolled,
    "restart --maintenance": typed(MAINTENANCE, run="true"),
    "restart --dry-run": typed(RESTART, rehearse_restart),
    "rollback": typed(ROLLBACK),
    "rollback --dry-run": typed(ROLLBACK, rehearse_restart),
    "up --replace": changed,
}


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["restart", *by_turns([verb for verb in VERBS if verb != "restart"])])
def test_checks_refuse_each_verb_while_the_gang_serves(
    local: Local, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], verb: str
) -> None:
    """Every check a restart; two of them each other verb, which has its turn."""
    every, turn = list(CHECKS.values()), list(VERBS).index(verb)
    gang = serving(local, monkeypatch)
    before = gang.view()

    def refused(place: str, words: str) -> str:
        with pytest.raises(DeployError) as said:
            VERBS[verb](gang, monkeypatch)
        assert (said.value.exit_code, said.value.where[: len(place)]) == (Exit.FINDINGS, place), said.value
        assert words in said.value.what and said.value.fix
        after = gang.view()
        assert (after.state, after.run_id, after.service_healthy) == (GangState.READY, before.run_id, True)
        return said.value.fix

    for breaks, place, words in every if verb == "restart" else (every[turn], every[turn - 3]):
        with breaks(gang):
            refused(place, words)
    if verb != "up --replace":  # whose plan is made from what the doctor finds
        findings.append(ECC)
        fix = refused("node1", "uncorrectable memory errors")
        assert "accept it with --accept GPU-HEALTH@node1" in fix
        findings.clear()
    VERBS[verb](gang, monkeypatch)
    assert gang.view().state is GangState.READY
    assert (gang.view().run_id == before.run_id) is ("dry-run" in verb)


@pytest.mark.processes
def test_what_was_accepted_forbids_nothing_later(local: Local, findings: list[Finding]) -> None:
    """By the command, or by the one that made the plan."""
    gang = local()
    gang.up(accept=("GPU-HEALTH@node1",))
    findings.append(ECC)
    assert rehearse_restart(gang.inventory, RestartRequest(), Notes())
    findings.append(replace(ECC, node="node0"))
    with pytest.raises(FindingsError):
        rehearse_restart(gang.inventory, RestartRequest(), Notes())
    assert rehearse_restart(gang.inventory, RestartRequest(accept=("GPU-HEALTH",)), Notes())
    with pytest.raises(InputError, match="no finding is called"):
        restart(gang.inventory, RestartRequest(accept=("GPU-HELTH",)), Notes())


@pytest.mark.processes
def test_a_first_start_compares_the_checkpoints_too(local: Local) -> None:
    gang = local()
    shutil.copytree(gang.model, model(gang))
    (model(gang) / "config.json").write_text('{"layers": 2}')
    gang.changes[1] = {"model_path": str(model(gang))}
    with pytest.raises(FindingsError, match=r"config\.json is not the one that node0 has"):
        gang.up()
    gang.nothing_left()


A, B = {"config.json": "a"}, {"config.json": "b"}


@pytest.mark.parametrize(
    ("told", "odd", "good"),
    [
        ((A, A, A), "", ""),
        ((A, {}, A), "", ""),
        (({}, {}, {}), "", ""),
        ((A, A, B), "node2", "node0"),
        ((A, B, B), "node0", "node1"),
        ((A, B, {}), "node1", "node0"),
        (({}, B, A), "node2", "node1"),
    ],
)
def test_the_odd_copy_is_named_with_a_good_one(told: tuple[dict[str, str], ...], odd: str, good: str) -> None:
    names = tuple(f"node{rank}" for rank in range(3))
    request = StagingRequest(
        gang="g", run_id="r", node="n", node_rank=0, nnodes=3, model_path="/m", leader=Endpoint(port=1)
    )
    wrong = other_checkpoint(dict.fromkeys(names, request), dict(zip(names, told, strict=True)))
    assert (wrong is None) is (odd == "")
    if wrong is not None:
        assert wrong.where == f"{odd}: /m" and f"the one that {good} has" in wrong.what
        assert wrong.fix == f"l40s-deploy checkpoint push {good}:/m --node {odd} --repair"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('{"b": 1, "a": [1, 2]}', True),
        ('{\n"a": [1, 2],\n"b": 1, "transformers_version": "5", "_name_or_path": "x"}', True),
        ('{"a": [2, 1], "b": 1}', False),
        ('{"a": [1, 2]}', False),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_copies_of_a_checkpoint_are_told_apart_by_what_they_say(
    tmp_path: Path, text: str | None, same: bool | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": [1, 2], "b": 1}))
    usual = weights.told_apart(str(tmp_path))["config.json"]
    (tmp_path / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    found = weights.told_apart(str(tmp_path)).get("config.json")
    assert (None if found is None else found == usual) is same
    assert weights.told_apart("") == {}


NODES = ("node0", "node1", "node2")


def staged() -> Staged:
    request = StagingRequest(
        gang="gang0",
        run_id="r",
        node="any",
        node_rank=0,
        nnodes=2,
        leader=Endpoint(port=7700),
        gpus=tuple(range(8)),
        network=NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1"),
    )
    nodes = tuple(
        NodeSpec(name=name, gang="gang0", node_rank=rank, reach=Reach(host=name)) for rank, name in enumerate(NODES)
    )
    return Staged(gang=GangSpec(name="gang0", nodes=nodes), requests=dict.fromkeys(NODES, request))


def test_each_node_that_lacks_something_is_named_with_the_way_to_a_new_plan() -> None:
    was = topology()
    told = Notes()
    now = {"node0": was, "node1": replace(was, gpus=was.gpus[1:], rdma=was.rdma[1:])}
    say_gone(staged(), now, told)
    (words,) = told.steps
    assert words.startswith("node1 no longer has what its plan needs: GPU 0, RDMA port mlx5_0:1; ")
    assert "plan --diff" in words
    say_gone(staged(), {}, told)
    assert told.steps == [words], "a node that could not be looked at is not judged"


def test_a_node_without_any_port_is_against_a_start_by_a_plan_that_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    was, told, plan = topology(), Notes(), staged()
    needs = replace(plan.requests["node1"], plan_id="p")
    plan = replace(plan, requests=dict.fromkeys(NODES, needs))
    nodes = {"node0": was, "node1": was, "node2": was}
    seen = Examination(Cluster(topologies=nodes, snapshots={}, specs={}), (), (), {})
    monkeypatch.setattr(checks, "examine", lambda *_: seen)
    fleet = SimpleNamespace(on_every=lambda *_, only: PerNode(values={}, failures={}))
    assert against_starts(fleet, [plan], told) is None  # type: ignore[arg-type]
    nodes["node1"] = replace(was, rdma=tuple(replace(port, state="DOWN") for port in was.rdma))
    against = against_starts(fleet, [plan], told)  # type: ignore[arg-type]
    assert against is not None and against.outdated and against.nodes == ()
    assert against.error.where == "node1" and "l40s-deploy up --model" in against.error.fix


def test_gangs_with_other_checkpoints_are_compared_each_with_itself() -> None:
    """One of two gangs has an index file, the other none."""
    plan = staged()
    other = GangSpec(name="gang1", nodes=tuple(replace(one, name=f"{one.name}b") for one in plan.gang.nodes))
    request = plan.requests["node1"]
    plans = [plan, Staged(gang=other, requests={node.name: request for node in other.nodes})]
    files = {"config.json": "a", "model.safetensors.index.json": "b"}
    told = {name: CheckAnswer(checkpoint=files) for name in NODES} | {
        node.name: CheckAnswer(checkpoint={"config.json": "c"}) for node in other.nodes
    }
    fleet = SimpleNamespace(on_every=lambda *_, only: PerNode(values={n: told[n] for n in only}, failures={}))
    assert against_on_nodes(fleet, plans) is None  # type: ignore[arg-type]
    told["node2b"] = CheckAnswer(checkpoint={"config.json": "a"})
    against = against_on_nodes(fleet, plans)  # type: ignore[arg-type]
    assert against is not None and against.error.where.startswith("node2b: ")
