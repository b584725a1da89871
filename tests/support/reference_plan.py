"""Plans of the reference cluster, and what they stage on its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.support.reference_cluster import gang, topologies

from orchestrator.gang.steps.staging import staging_requests
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import Plan
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.topology import Topology
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.host import HostFacts
from orchestrator.planning.steps.plan import launch_scripts
from orchestrator.protocol.staging import Asked, StagingRequest

MODEL = "DeepSeek-V3-0324-Block64x64"


def plan_of(
    spec: GangSpec | None = None,
    model: str | ModelProfile = MODEL,
    stack: str | Stack = "sglang-0.5.23",
    *,
    facts: Mapping[str, Topology] | None = None,
    hosts: Mapping[str, HostFacts] = MappingProxyType({}),
    api_keys: Mapping[str, str] = MappingProxyType({}),
    **asked: Any,
) -> Plan:
    """Of one gang. facts: those of its nodes where None; asked: of `Asked`."""
    spec = spec or gang()
    profile = load_profile(model) if isinstance(model, str) else model
    known = PlanFacts(topologies=topologies(spec) if facts is None else facts, hosts=hosts, api_keys=api_keys)
    stack = load_stack(stack) if isinstance(stack, str) else stack
    return build_plan([spec], profile, stack, Asked(model=profile.name, **asked), known)


def staged(spec: GangSpec, plan: Plan, *, run_id: str = "r", **more: Any) -> dict[str, StagingRequest]:
    """By node name."""
    scripts = launch_scripts(plan)
    return staging_requests(spec, plan.gangs[0], scripts, plan_id=plan.plan_id, run_id=run_id, **more)
