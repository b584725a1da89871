"""What reaches a node of the secrets, and that it is all in one place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.reference_cluster import gang, topologies

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Overrides
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import PlanOptions
from orchestrator.planning.redaction import fingerprint
from orchestrator.protocol.staging import Secrets, StagingRequest
from orchestrator.workflows.gang.staging import staging_requests
from orchestrator.workflows.plan.plan import api_key, launch_scripts

KEY = "sk-0123456789abcdef"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(f"{KEY}\n")
    return path


def requests(spec: GangSpec, stack: str, of_plan: str = "") -> dict[str, StagingRequest]:
    keys = {"gang0": fingerprint(of_plan or api_key(spec))} if spec.leader.api_key_file else {}
    plan = build_plan(
        [spec],
        load_profile("DeepSeek-V3-0324-Block64x64"),
        load_stack(stack),
        topologies(spec),
        PlanOptions(api_keys=keys),
    )
    return staging_requests(spec, plan.gangs[0], launch_scripts(plan), plan_id="p", run_id="r", key="00")


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
