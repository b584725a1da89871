"""A plan in a file: carried out only while it is valid; whatever is no longer valid is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError, VerificationDiffers
from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import Plan
from orchestrator.model.topology import Topology
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import PlanOptions
from orchestrator.planning.plan_file import refuse_changes
from orchestrator.planning.steps.file import read_request, write_plan
from orchestrator.planning.steps.plan import PlanRequest

REQUEST = PlanRequest(model="DeepSeek-V3-0324-Block64x64", tp=32, gangs=("gang0",), extra_args=("--enable-metrics",))


def plan(change: Callable[[Topology], Topology] = lambda same: same, **settings: Any) -> Plan:
    spec = gang(**settings)
    facts = topologies(spec)
    facts["node2"] = change(facts["node2"])
    return build_plan(
        [spec], load_profile(REQUEST.model), load_stack("sglang-0.5.23"), facts, PlanOptions(extra_args=())
    )


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
        ('{"format": 1, "plan_id": "x", "facts": [], "nodes": [], "request": {"model": "m"}}', "this is not a plan"),
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


def test_the_document_is_the_plans_own(file: Path) -> None:
    document = json.loads(file.read_text())
    assert {"format", "plan_id", "facts_digest", "nodes", "request"} <= set(document)
    assert [path.name for path in file.parent.iterdir()] == ["plan.json"]
