"""Every rule, on machines that the lab did not write: it names the broken node and device, and nothing else."""

from __future__ import annotations

import pytest
from tests.support.faults import FAULTS, ODD, Fault
from tests.support.healthy_cluster import cluster_of, cluster_with, healthy_nodes

from orchestrator.doctor.rules.support.registry import all_rules, run_rules
from orchestrator.model.finding import Severity

BAD = (Severity.STOP, Severity.SLOW)


def test_nothing_is_found_on_a_healthy_cluster() -> None:
    assert run_rules(cluster_of(healthy_nodes())) == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_where_it_is_and_nowhere_else(fault: Fault) -> None:
    findings = run_rules(cluster_with(ODD, fault.breaks, fault.trials))
    assert {finding.node for finding in findings} == {ODD}
    meant = [finding for finding in findings if finding.id == fault.says and finding.severity is fault.severity]
    assert meant, f"no {fault.says}: {[finding.id for finding in findings]}"
    assert any(finding.devices[: len(fault.devices)] == fault.devices for finding in meant), meant
    assert {finding.id for finding in findings} <= {fault.says, *fault.also}
    for finding in findings:
        assert finding.title
        assert finding.evidence
        assert finding.effect
        assert finding.fix


def test_every_rule_is_proven_by_a_fault() -> None:
    assert {rule.id for rule in all_rules()} == {fault.says for fault in FAULTS}


def test_every_rule_says_what_it_reads_and_where_it_comes_from() -> None:
    for rule in all_rules():
        assert rule.title and rule.explain and rule.reads and rule.source
        assert rule.id == rule.id.upper()
