"""What forbids the start that follows forbids the stop: each check at each verb leaves the gang serving."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_gang import Local, LocalGang
from tests.unit.gang.steps.test_restart import Told
from tests.unit.gang.steps.test_up import up, with_env

from orchestrator.gang.steps import restart as restart_module
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.restart import RESTART, ROLLING, RestartRequest, RestartVerb, rehearse_restart, restart
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.gang.steps.staging import other_checkpoint
from orchestrator.model.errors import DeployError, Exit, FindingsError, InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.node.agent import weights
from orchestrator.protocol.staging import Endpoint, StagingRequest

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
    nodes = tuple(replace(node, command=(str(python), *node.command[1:])) for node in one.nodes)
    plan = replace(plan, gangs=(replace(one, nodes=nodes),))
    monkeypatch.setattr(gang, "plan", lambda: plan)
    up(gang, plan, monkeypatch)
    up(gang, with_env(replace(plan, plan_id="plan2"), NEW="2"), monkeypatch, replace_it=True)
    return gang


def rolled(gang: LocalGang, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(restart_module, "_refuse_too_few", lambda *_: None)
    (one,) = gang.inventory.gangs
    absent = GangSpec(
        name="gang1", nodes=tuple(replace(node, name=f"{node.name}b", gang="gang1") for node in one.nodes)
    )
    two = Inventory(path="hosts.yml", gangs=(one, absent))
    return restart(two, RestartRequest(verb=ROLLING, gangs=("gang0",), without_router=True), Told())


def changed(gang: LocalGang, monkeypatch: pytest.MonkeyPatch) -> object:
    """As a guard's return to all nodes does, too."""
    plan = with_env(replace(gang.plan(), plan_id="plan3"), NEW="3")
    return up(gang, plan, monkeypatch, replace_it=True)


def typed(verb: RestartVerb, carry_out: Callable[..., object] = restart, **words: Any) -> Verb:
    return lambda gang, _: carry_out(gang.inventory, RestartRequest(verb=verb, **words), Told())


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
@pytest.mark.parametrize("verb", VERBS)
def test_each_check_refuses_each_verb_while_the_gang_serves(
    local: Local, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], verb: str
) -> None:
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

    for breaks, place, words in CHECKS.values():
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
    assert rehearse_restart(gang.inventory, RestartRequest(), Told())
    findings.append(replace(ECC, node="node0"))
    with pytest.raises(FindingsError):
        rehearse_restart(gang.inventory, RestartRequest(), Told())
    assert rehearse_restart(gang.inventory, RestartRequest(accept=("GPU-HEALTH",)), Told())
    with pytest.raises(InputError, match="no finding is called"):
        restart(gang.inventory, RestartRequest(accept=("GPU-HELTH",)), Told())


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
