"""The layouts that a gang of a plan could have, each with its calculated speed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from orchestrator.loading.library import Library
from orchestrator.model.benchmark import ExpectedSpeeds
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile
from orchestrator.planning.layout import degrees_of
from orchestrator.planning.offers import L40S_BYTES, LayoutFit, offer
from orchestrator.planning.page_cache import FAST_DISK
from orchestrator.planning.steps.measured import planned_network
from orchestrator.planning.steps.models import costs_json, speeds_json
from orchestrator.planning.steps.plan import PlanResult


def layouts_of(inventory: Inventory, planned: PlanResult) -> dict[str, tuple[LayoutFit, ...]]:
    """By gang: every layout that fits its GPUs. Gangs that none can be offered for are left out."""
    found = {}
    for gang in inventory.gangs:
        for plan in planned.plan.gangs:
            if plan.name == gang.name:
                with suppress(DeployError):
                    found[gang.name] = _fits(gang, plan, planned)
    return found


def _fits(gang: GangSpec, plan: GangPlan, planned: PlanResult) -> tuple[LayoutFit, ...]:
    return offer(
        planned.profile,
        planned.stack,
        gang,
        gpu_total=plan.memory.gpu_total or L40S_BYTES,
        gpu=_gpu_name(gang, planned),
        network=planned_network(gang, plan, planned.profile),
    ).fits


def _gpu_name(gang: GangSpec, planned: PlanResult) -> str:
    names = [gpu.name for node in gang.nodes if node.name in planned.topologies
             for gpu in planned.topologies[node.name].gpus if gpu.name]  # fmt: skip
    return names[0] if names else ""


def chosen(fits: tuple[LayoutFit, ...], gang: GangPlan) -> LayoutFit | None:
    """The one that the plan takes."""
    return next((fit for fit in fits if fit.degrees == degrees_of(gang.layout)), None)


def fit_words(fit: LayoutFit) -> str:
    """'PP4 x TP8 (node-stages): 667k KV tokens, 86 kB a token between nodes, 41 to 983 tokens/s at 1 and 128 requests,
    172 GB to read on each node (34 s at 5 GB/s)'."""
    groups = f" in each of {fit.degrees.attention} groups" if fit.degrees.attention > 1 else ""
    parts = [] if fit.kv_tokens is None else [f"{fit.kv_tokens // 1000}k KV tokens{groups}"]
    parts.append(f"{fit.sent / 1000:.0f} kB per token between nodes")
    if fit.speeds is not None:
        least, most = min(fit.speeds.tokens_per_s), max(fit.speeds.tokens_per_s)
        rates = f"{fit.speeds.tokens_per_s[least]:.0f} to {fit.speeds.tokens_per_s[most]:.0f}"
        parts.append(f"{rates} tokens/s at {least} and {most} requests")
    parts.append(f"{fit.read / 1e9:.0f} GB to read on each node at a start ({fit.read / FAST_DISK:.0f} s at 5 GB/s)")
    name = f" ({fit.name})" if fit.name else ""
    return f"{fit.degrees}{name}{', measured' if fit.measured else ''}: {', '.join(parts)}"


def measured_words(model: str) -> str:
    """What others measured of this profile, beside the same architecture in other formats under the same load; ''
    where there is no such measurement, or no such profile here."""
    try:
        own = Library.profile(model)
    except DeployError:  # another operator's
        return ""
    mine = _served(own)
    if mine is None:
        return ""
    asked = (mine.stack, mine.layout, mine.gpu, mine.load)
    others = []
    for profile in (Library.profile(name) for name in Library.models() if name != own.name):
        one = _served(profile)
        if one and profile.dimensions == own.dimensions and (one.stack, one.layout, one.gpu, one.load) == asked:
            others.append(f"{profile.quantisation} {_rate(one):g} (other weights: {profile.name})")
    return (
        f"measured by {mine.stack} at {mine.layout}, {mine.load.concurrency} requests at once: "
        + ", ".join([f"{own.quantisation} {_rate(mine):g} tokens/s", *others])
        + f"; {mine.source}"
    )


def _served(profile: ModelProfile) -> ExpectedSpeeds | None:
    return next((one for one in profile.expected if one.wiring == "right" and _rate(one)), None)


def _rate(one: ExpectedSpeeds) -> float:
    return dict(one.figures).get("output_tok_s", 0.0)


def layouts_json(fits: tuple[LayoutFit, ...]) -> list[dict[str, Any]]:
    """The key `layouts` of a gang in `plan --json`."""
    return [
        {
            "name": str(fit.degrees),
            "tp": fit.degrees.tensor,
            "pp": fit.degrees.pipeline,
            "ep": fit.degrees.expert,
            "attn_dp": fit.degrees.attention,
            "layout": fit.name or None,
            "kv_tokens": fit.kv_tokens,
            **costs_json(fit),
            **speeds_json(fit),
        }
        for fit in fits
    ]
