"""A stack's requirements, checked against the node's facts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reference_cluster import node

from orchestrator.loading.profiles import load_profile, load_stack, stack_names
from orchestrator.planning.host import HostFacts, contradictions, older
from orchestrator.protocol.severity import Severity

MODEL = load_profile("DeepSeek-V3-0324-Block64x64")


def found(stack: str, driver: str = "", **facts: Any) -> list[tuple[str, Severity]]:
    told = contradictions(node(), load_stack(stack), MODEL, HostFacts(**facts), driver)
    return [(finding.id, finding.severity) for finding in told]


def test_facts_that_were_not_read_contradict_nothing() -> None:
    assert all(found(stack) == [] for stack in stack_names())


@pytest.mark.parametrize(
    ("stack", "facts", "ids"),
    [
        ("sglang-0.5.23", {"driver": "550.90.07"}, [("DRIVER-OLD", Severity.STOP)]),
        ("sglang-0.5.23", {"driver": "580.65.06"}, []),
        ("sglang-0.4.4-l40s", {"driver": "550.90.07"}, []),
        ("sglang-0.4.4-l40s", {"driver": "470.82.01"}, [("DRIVER-OLD", Severity.STOP)]),
        ("sglang-0.5.23-cpu", {"driver": "470.82.01"}, []),
        ("sglang-0.5.23", {"glibc": "2.31"}, [("GLIBC-OLD", Severity.STOP)]),
        ("sglang-0.4.4-l40s", {"glibc": "2.31", "engine": True, "engine_python": "3.11.2"}, []),
        ("sglang-0.5.23", {"engine_python": "3.10.14"}, [("STACK-PYTHON", Severity.STOP)]),
        ("sglang-0.5.23", {"engine_python": "3.12.1"}, [("STACK-PYTHON", Severity.NOTE)]),
        ("sglang-0.5.23", {"engine_python": "3.11.2.final.0"}, []),
        ("sglang-0.5.23", {"engine": False}, [("STACK-MISSING", Severity.NOTE)]),
        ("sglang-0.5.23", {"config_error": "ENOENT"}, [("MODEL-MISSING", Severity.NOTE)]),
        ("sglang-0.5.23", {"config_error": "EACCES"}, [("MODEL-UNREAD", Severity.UNKNOWN)]),
    ],
)
def test_contradictions(stack: str, facts: dict[str, Any], ids: list[tuple[str, Severity]]) -> None:
    assert found(stack, **facts) == ids


@pytest.mark.parametrize(
    ("version", "least", "is_older"),
    [("2.9", "2.17", True), ("2.36", "2.17", False), ("", "2.17", False), ("2.17", "", False), ("2.17", "2.17", False)],
)
def test_versions_are_compared_as_numbers(version: str, least: str, is_older: bool) -> None:
    assert older(version, least) is is_older


@pytest.mark.parametrize("stack", ["sglang-0.4.4-l40s", "sglang-0.5.23"])
def test_a_stack_for_gpus_says_what_it_needs_and_holds(stack: str) -> None:
    said = load_stack(stack)
    assert said.driver_min
    assert said.glibc_min
    assert {"libibverbs1", "ibverbs-providers", "gcc"} <= set(said.system_packages)
    assert any("SM89" in line for line in said.contains)
    assert said.nccl_version
