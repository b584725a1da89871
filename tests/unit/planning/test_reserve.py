"""A memory fraction that leaves too little is said with its sum, before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.reference_plan import plan_of

from orchestrator.model.plan import Memory
from orchestrator.planning.needs import GIB
from orchestrator.planning.reserve import ID, findings
from orchestrator.protocol.severity import Severity


@pytest.mark.parametrize(("stack", "fraction"), [("sglang-0.5.23", "0.99"), ("sglang-0.4.4-l40s", "0.95")])
def test_too_little_is_slow_with_the_sum(stack: str, fraction: str) -> None:
    plan = plan_of(stack=stack, extra_args=("--mem-fraction-static", fraction))
    (found,) = (one for one in plan.findings if one.id == ID)
    assert found.severity is Severity.SLOW and f"a memory fraction of {fraction} leaves" in found.title
    assert sum(line.startswith("reserved for graphs and activations: ") for line in found.evidence) == 2


@pytest.mark.parametrize("extra", [(), ("--mem-fraction-static", "0.8")])
def test_what_the_engine_takes_itself_or_nearly_is_fine(extra: tuple[str, ...]) -> None:
    assert ID not in {one.id for one in plan_of(extra_args=extra).findings}


def test_what_is_not_known_is_no_fault() -> None:
    assert not list(findings("gang0", Memory(), Memory(reserve=9, static_fraction=0.8)))
    assert not list(findings("gang0", Memory(reserve=1, static_fraction=0.99), None))


def test_what_was_measured_decides_and_not_half_of_the_engines_own() -> None:
    """1.25 GiB of requests' tables, 0.44 of graphs, 2 of activations and 1.5 for what nobody measured."""
    own = Memory(reserve=12 * GIB, static_fraction=0.732, needed=5 * GIB)
    enough, less = (replace(own, reserve=size * GIB, static_fraction=0.88) for size in (5, 4))
    assert not list(findings("gang0", enough, own))
    (found,) = findings("gang0", less, own)
    assert "leaves 4.00 GiB" in found.title and "of 5.00 wanted" in found.title
    assert found.fix.endswith("give at most 0.85")
