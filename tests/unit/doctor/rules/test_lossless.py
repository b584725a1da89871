"""Which priority has PFC, and which one NCCL's packets have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import Overrides


def found(told: Any, **overrides: Any) -> list[Finding]:
    nodes = healthy_nodes(1)
    nodes["node0"].host["flow_control"] = told
    cluster = cluster_of(nodes)
    spec = replace(cluster.specs["node0"], overrides=Overrides(**overrides))
    return [one for one in run_rules(replace(cluster, specs={"node0": spec})) if one.id == "LOSSLESS-UNMARKED"]


def pfc(*priorities: int) -> str:
    return bytes([8, sum(1 << one for one in priorities), 0, 0, *bytes(132)]).hex()


@pytest.mark.parametrize(
    ("told", "overrides", "title"),
    [
        (pfc(3), {}, "ens2f1np1 is lossless for priority 3, but NCCL's packets have priority 0"),
        (pfc(3), {"ib_tc": 106}, ""),
        (pfc(3), {"env": (("NCCL_IB_TC", "106"),)}, ""),
        (pfc(3, 4), {"ib_tc": 136}, ""),
        (pfc(4), {"ib_tc": 106}, "ens2f1np1 is lossless for priority 4, but NCCL's packets have priority 3"),
        (pfc(0), {}, ""),
        (pfc(), {}, ""),
        (pfc(), {"ib_tc": 106}, "ens2f1np1 is lossless for no priority, but NCCL's packets have priority 3"),
        ("08", {}, ""),
        ("no hexadecimal digits", {}, ""),
    ],
)
def test_the_priority_is_compared_with_the_traffic_class(told: str, overrides: dict[str, Any], title: str) -> None:
    findings = found({"ens2f1np1": told}, **overrides)
    assert [one.title for one in findings] == ([title] if title else [])
    assert all(one.severity is Severity.NOTE for one in findings)


def test_the_fix_names_a_class_of_that_priority() -> None:
    (only,) = found({"ens2f1np1": pfc(3)})
    assert "l40s_ib_tc: 106 in the inventory (DSCP 26)" in only.fix
    assert not found({"ens2f1np1": pfc(3)}, ib_tc=106)


@pytest.mark.parametrize("told", [None, [], {}, {"eno1": pfc(3)}])
def test_nothing_is_said_of_what_was_not_read(told: Any) -> None:
    assert not found(told)
