"""What `doctor` says of a node is what `plan` and `up` say of it, over every broken machine that the rules are tested
with: the same severity, devices and title."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.faults import FAULTS, ODD, Fault
from tests.support.healthy_cluster import cluster_with
from tests.support.reference_plan import MODEL, plan_of

from orchestrator.doctor.rules.support.registry import COSTLY
from orchestrator.doctor.steps.doctor import diagnose
from orchestrator.doctor.steps.plan_findings import examined
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.planning.steps.plan import PlanResult
from orchestrator.protocol.errors import DeployError

STACK = "sglang-0.5.23"
BY_MODEL = ("TUNED-CONFIGS",)
"""Graver where the plan's model takes what is at fault."""
ANOTHER_STACK = "a version that no dialect lists"
"""Whose machine has a stack of its own."""
PLAYED = [fault for fault in FAULTS if not fault.trials and fault.name != ANOTHER_STACK]
"""Of those with trials a plan that is not told of the network says nothing."""


def key(finding: Finding) -> tuple[object, ...]:
    return finding.id, finding.node, finding.devices, finding.title


def both_say(fault: Fault) -> tuple[list[Finding], list[Finding]]:
    """(the doctor's findings, the plan's); the doctor's twice where no plan is made."""
    cluster = cluster_with(ODD, fault.breaks)
    by_doctor = list(diagnose(cluster, {}).findings)
    gang = GangSpec(name=next(iter(cluster.specs.values())).gang, nodes=tuple(cluster.specs.values()))
    facts = {name: replace(topology, driver="580.105.08") for name, topology in cluster.topologies.items()}
    try:
        plan = plan_of(gang, facts=facts)
    except DeployError:
        return by_doctor, by_doctor
    planned = PlanResult(
        plan=plan,
        profile=load_profile(MODEL),
        stack=load_stack(STACK),
        topologies=cluster.topologies,
        snapshots=cluster.snapshots,
    )
    return by_doctor, list(examined(planned, [gang]).findings)


@pytest.mark.parametrize("fault", PLAYED, ids=[fault.name for fault in PLAYED])
def test_plan_and_doctor_say_the_same_of_a_node(fault: Fault) -> None:
    by_doctor, by_plan = both_say(fault)
    severities = {key(finding): finding.severity for finding in by_plan}
    for finding in by_doctor:
        if finding.severity in COSTLY and finding.id not in BY_MODEL:
            assert severities.get(key(finding)) is finding.severity, finding
    known = {key(finding) for finding in by_doctor}
    assert [finding.title for finding in by_plan if finding.severity in COSTLY and key(finding) not in known] == []
