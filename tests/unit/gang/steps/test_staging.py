"""The secrets that reach a node, and that all of them are in one place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of, staged

from orchestrator.gang.steps.staging import Staged
from orchestrator.model.inventory import GangSpec, Overrides
from orchestrator.model.secret_text import fingerprint
from orchestrator.model.topology import Topology
from orchestrator.planning.steps.plan import api_key
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import NodePlan, Secrets, StagingRequest

KEY = "sk-0123456789abcdef"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(f"{KEY}\n")
    return path


def requests(
    spec: GangSpec,
    stack: str,
    of_plan: str = "",
    hung_after_s: float | None = None,
    facts: Mapping[str, Topology] | None = None,
) -> dict[str, StagingRequest]:
    keys = {"gang0": fingerprint(of_plan or api_key(spec))} if spec.leader.api_key_file else {}
    plan = plan_of(spec, stack=stack, facts=facts, api_keys=keys)
    return staged(spec, plan, hung_after_s=hung_after_s)


@pytest.mark.parametrize(
    ("stack", "names"),
    [
        ("sglang-0.5.23", ["engine-secrets.yml"]),
        ("sglang-0.4.4-l40s", ["launch_with_secrets.py", "engine-secrets.args"]),
    ],
)
def test_the_key_is_the_leaders_and_in_its_secrets_only(key_file: Path, stack: str, names: list[str]) -> None:
    told = requests(gang(api_key_file=str(key_file)), stack)
    secrets = told["node0"].secrets
    assert secrets is not None
    assert [file.name for file in secrets.files] == names
    assert KEY in secrets.files[-1].text
    assert (secrets.redact, secrets.authorization) == ((KEY,), f"Bearer {KEY}")
    assert KEY not in json.dumps([request.kept() for request in told.values()]) + told["node0"].launch_script
    assert KEY not in repr(told)
    assert told["node1"].secrets == Secrets()


def test_secrets_of_the_environment_are_redacted_everywhere() -> None:
    told = requests(gang(overrides=Overrides(env=(("HF_TOKEN", "hf_secret"), ("A", "b")))), "sglang-0.5.23")
    assert [request.secrets for request in told.values()] == [Secrets(redact=("hf_secret",))] * 4


def test_a_key_that_changed_after_the_plan_is_refused(key_file: Path) -> None:
    with pytest.raises(InputError, match="changed since"):
        requests(gang(api_key_file=str(key_file)), "sglang-0.5.23", of_plan="another-key")


def test_the_cards_that_are_meant_are_staged_with_their_numbers() -> None:
    spec = gang()
    facts = topologies(spec)
    facts = {
        n: replace(one, gpus=tuple(replace(g, uuid=f"{n}-{g.index}") for g in one.gpus)) for n, one in facts.items()
    }
    told = read(requests(spec, "sglang-0.5.23", facts=facts)["node2"])
    assert (told.gpus, told.gpu_uuids) == (tuple(range(8)), tuple(f"node2-{place}" for place in range(8)))


def test_the_patience_with_an_engine_is_staged_and_goes_into_every_restart() -> None:
    spec = gang()
    first = requests(spec, "sglang-0.5.23")
    staged = Staged(gang=spec, requests={name: read(one) for name, one in first.items()})
    assert {one.watch.probe.hung_after_s for one in again(staged).values()} == {0.0}
    patient = staged.hung_after(150.0)
    kept = Staged(gang=spec, requests={name: read(one) for name, one in again(patient).items()})
    assert {one.watch.probe.hung_after_s for one in again(kept.hung_after(None)).values()} == {150.0}
    assert kept.plan_id == staged.plan_id


def test_up_stages_the_patience_that_was_asked_for() -> None:
    told = requests(gang(), "sglang-0.5.23", hung_after_s=90.0)
    assert {one.watch.probe.hung_after_s for one in told.values()} == {90.0}


def again(staged: Staged) -> Mapping[str, StagingRequest]:
    return staged.again().of_run("r2", "11")


def read(request: StagingRequest) -> StagingRequest:
    """As a node stores it and a restart receives it."""
    found = StagingRequest.read(json.loads(json.dumps(request.kept())))
    assert isinstance(found, StagingRequest)
    return found


@pytest.mark.parametrize("stack", ["sglang-0.5.23", "tests/golden/plan/in-docker/stack.yml"])
def test_a_plan_is_the_document_that_is_staged(stack: str) -> None:
    """Every key of every node's part: nothing is copied by name, and nothing is left behind."""
    spec = gang()
    plan = plan_of(spec, stack=stack)
    for part in plan.gangs[0].nodes:
        request = staged(spec, plan)[part.name]
        assert isinstance(request, NodePlan)
        assert part.as_json().items() <= request.kept().items()
    patient = staged(spec, plan, hung_after_s=7.0)["node0"].watch
    assert (patient.probe.hung_after_s, patient.causes) == (7.0, plan.gangs[0].leader.watch.causes)


def test_a_secret_is_in_no_part_of_a_record() -> None:
    theirs = ("--download-dir", "https://user:hunter22@host/")
    spec = gang(overrides=Overrides(env=(("HF_TOKEN", "hf_secret"),), args=theirs))
    plan = plan_of(spec, extra_args=("--download-dir", "https://user:hunter23@host/"))
    record = json.dumps(Staged(gang=spec, requests=staged(spec, plan)).recorded())
    assert "hf_secret" not in record and "hunter2" not in record
    assert "override: the command line, instead of --download-dir" in record, "where each value comes from"
