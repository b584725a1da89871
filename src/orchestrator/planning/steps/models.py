"""`models`, the layouts that `plan` lists, by what `nettest` measured of the network, and a new profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.loading import resources
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.loading.resources import template
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import BYTES_A_NUMBER, Between, ModelProfile, Stack
from orchestrator.planning.judgement import Judgement, draft, known_dimensions
from orchestrator.planning.layout import flags
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import L40S_BYTES, LayoutFit, ModelOffer, offer
from orchestrator.planning.page_cache import FAST_DISK, SLOW_DISK
from orchestrator.planning.roofline import Network, StepParts
from orchestrator.planning.steps.measured import own_points, with_measured
from orchestrator.planning.steps.plan import PlanResult, chosen_stack, who_can
from orchestrator.protocol.errors import DeployError, InputError
from orchestrator.protocol.planned import Transport
from orchestrator.records.documents import write_whole
from orchestrator.records.nettests import newest
from orchestrator.rendering import profile_file
from orchestrator.topology.speed import Traffic

ASSUMED = "48 GB L40S (46068 MiB by NVML), assumed; the nodes were not contacted"


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One profile and what each gang can do with it. stacks: each engine's own, and why it can't serve it, '' if it
    can."""

    profile: ModelProfile
    offers: tuple[ModelOffer, ...]
    stacks: tuple[tuple[str, str], ...]


def list_models(gangs: Sequence[GangSpec], stack: str | None, name: str | None = None) -> tuple[ModelListing, ...]:
    """Every profile, by name, or this one. stack: as for `plan`, None lets the inventory and the profile decide."""
    listed = []
    for profile in map(load_profile, profile_names() if name is None else (name,)):
        stacks = [load_stack(chosen_stack((gang,), profile, stack).name) for gang in gangs]
        offers = [offer_here(profile, its_stack, gang) for gang, its_stack in zip(gangs, stacks, strict=True)]
        listed.append(ModelListing(profile, tuple(offers), who_can(profile)))
    return tuple(listed)


def offer_here(profile: ModelProfile, stack: Stack, gang: GangSpec) -> ModelOffer:
    """By the inventory, and by what was measured on these nodes."""
    network, own = network_of(gang, stack.name, profile), own_points(gang, profile.name, stack.name)
    return with_measured(offer(profile, stack, gang, network=network, own=own), gang)


def models_json(listed: Sequence[ModelListing]) -> dict[str, Any]:
    """The document of `models --json`."""
    return {"assumed": ASSUMED, "models": [_model(each) for each in listed]}


def _model(listed: ModelListing) -> dict[str, Any]:
    profile = listed.profile
    return {
        "name": profile.name,
        "source": profile.source,
        "directory": profile.directory,
        "architecture": profile.architecture,
        "quantisation": profile.quantisation,
        "block": list(profile.block) if any(profile.block) else None,
        "parts": dict(profile.parts),
        "attention": profile.attention,
        "bytes": checkpoint_bytes(profile),
        "measured": [{"stack": stack, "layout": layout} for stack, layout in profile.measured],
        "stacks": [{"name": name, "can": not reason, "reason": reason or None} for name, reason in listed.stacks],
        "gangs": [_offer(each) for each in listed.offers],
    }


def _offer(each: ModelOffer) -> dict[str, Any]:
    return {
        "gang": each.gang,
        "nodes": each.nodes,
        "gpus_per_node": each.gpus_per_node,
        "stack": each.stack,
        "layouts": [
            {
                "name": str(fit.layout),
                "layout": fit.name or None,
                "flags": flags(fit.layout),
                "tensor_parallel": fit.layout.tensor_parallel,
                "pipeline_parallel": fit.layout.pipeline_parallel,
                "expert_parallel": fit.layout.expert_parallel,
                "attention_data_parallel": fit.layout.attention_data_parallel,
                "weights_bytes_per_gpu": fit.weights,
                "kv_tokens": fit.kv_tokens,
                "measured": fit.measured,
                "measured_here": _here(fit),
                "default": fit.default,
                **_figures(fit),
            }
            for fit in each.fits
        ],
        "refusal": {"what": each.refusal, "fix": each.instead} if each.refusal else None,
    }


def layouts_json(fits: tuple[LayoutFit, ...]) -> list[dict[str, Any]]:
    """The key `layouts` of a gang in `plan --json`."""
    return [
        {
            "name": str(fit.layout),
            "tp": fit.layout.tensor_parallel,
            "pp": fit.layout.pipeline_parallel,
            "ep": fit.layout.expert_parallel,
            "attn_dp": fit.layout.attention_data_parallel,
            "layout": fit.name or None,
            "kv_tokens": fit.kv_tokens,
            "measured_here": _here(fit),
            **_figures(fit),
        }
        for fit in fits
    ]


def _here(fit: LayoutFit) -> dict[str, float] | None:
    """Tokens a second by requests at once, as `sweep` measured them; None where it did not."""
    return {str(requests): speed for requests, speed in fit.here.items()} or None


def here_words(fit: LayoutFit) -> str:
    """'measured here: 48 to 770 tokens/s at 1 and 128 requests'; '' where nothing was."""
    if not fit.here:
        return ""
    least, most = min(fit.here), max(fit.here)
    if least == most:
        return f"measured here: {fit.here[most]:.0f} tokens/s at {most} requests"
    return f"measured here: {fit.here[least]:.0f} to {fit.here[most]:.0f} tokens/s at {least} and {most} requests"


def _figures(fit: LayoutFit) -> dict[str, Any]:
    """What a layout costs the network and a start (bytes, and seconds of reading from two kinds of disk), and its
    speed, null where nothing can be said: all of it calculated."""
    speeds = fit.speeds
    return {
        "network_bytes_per_token": fit.sent,
        "start": {
            "read_bytes_per_node": fit.read,
            "read_s": {"5 GB/s": round(fit.read / FAST_DISK), "1 GB/s": round(fit.read / SLOW_DISK)},
        },
        "tokens_per_s": speeds and {str(batch): round(speed, 1) for batch, speed in speeds.tokens_per_s.items()},
        "step_ms": speeds and {str(batch): _milliseconds(parts) for batch, parts in speeds.steps.items()},
        "calculated": True,
        "basis": speeds and speeds.basis,
        "error": speeds and round(speeds.error, 3),
        "not_calculated": None if speeds else fit.unsaid,
    }


def _milliseconds(parts: StepParts) -> dict[str, float]:
    seconds = {"weights": parts.weights_s, "all_reduces": parts.reduces_s, "rest": parts.rest_s}
    return {name: round(1000 * value, 2) for name, value in seconds.items()}


def step_words(fit: LayoutFit) -> str:
    """'34 + 35 + 91': milliseconds of a step for weights, all-reduces and the rest, with the most requests; '' where
    nothing can be said."""
    if fit.speeds is None:
        return ""
    parts = fit.speeds.steps[max(fit.speeds.steps)]
    return " + ".join(f"{1000 * value:.0f}" for value in (parts.weights_s, parts.reduces_s, parts.rest_s))


def layouts_of(inventory: Inventory, planned: PlanResult) -> dict[str, tuple[LayoutFit, ...]]:
    """By gang: every layout that fits its GPUs. Gangs that none can be offered for are left out."""
    plans = {plan.name: plan for plan in planned.plan.gangs}
    by_gang = {}
    for gang in inventory.gangs:
        if plan := plans.get(gang.name):
            seen = (planned.topologies[node.name] for node in gang.nodes if node.name in planned.topologies)
            with suppress(DeployError):
                offered = offer(
                    planned.profile,
                    planned.stack,
                    gang,
                    gpu_total=plan.memory.gpu_total or L40S_BYTES,
                    gpu=next((gpu.name for topology in seen for gpu in topology.gpus if gpu.name), ""),
                    network=network_of(gang, plan.stack, planned.profile, plan),
                    own=own_points(gang, planned.profile.name, plan.stack),
                )
                by_gang[gang.name] = with_measured(offered, gang).fits
    return by_gang


def fit_words(fit: LayoutFit) -> str:
    """'PP4 x TP8 (node-stages): 667k KV tokens, 86 kB a token between nodes, 41 to 986 tokens/s at 1 and 128 requests,
    86 + 14 + 30 ms a step at 128 (weights, all-reduces, rest), 172 GB to read on each node at a start (34 s or more at
    5 GB/s)'."""
    count = fit.layout.attention_data_parallel
    groups = f" in each of {count} groups" if count > 1 else ""
    parts = [] if fit.kv_tokens is None else [f"{fit.kv_tokens // 1000}k KV tokens{groups}"]
    parts.append(f"{fit.sent / 1000:.0f} kB per token between nodes")
    if fit.speeds is not None:
        least, most = min(fit.speeds.tokens_per_s), max(fit.speeds.tokens_per_s)
        rates = f"{fit.speeds.tokens_per_s[least]:.0f} to {fit.speeds.tokens_per_s[most]:.0f}"
        parts.append(f"{rates} tokens/s at {least} and {most} requests")
        parts.append(f"{step_words(fit)} ms a step at {most} (weights, all-reduces, rest)")
    parts += filter(None, [here_words(fit)])
    least_s = fit.read / FAST_DISK
    parts.append(f"{fit.read / 1e9:.0f} GB to read on each node at a start ({least_s:.0f} s or more at 5 GB/s)")
    name = f" ({fit.name})" if fit.name else ""
    return f"{fit.layout}{name}{', tried with this stack' if fit.measured else ''}: {', '.join(parts)}"


def _went_over_rdma(measured: Mapping[str, Any]) -> bool:
    transports = measured.get("transport")
    return isinstance(transports, dict) and any("IB over" in str(words) for words in transports.values())


def network_of(gang: GangSpec, stack: str, profile: ModelProfile, plan: GangPlan | None = None) -> Network:
    """By the plan, which has looked at the nodes; without one by the inventory alone: RDMA unless it says TCP. With the
    newest test of these nodes, slow or not: it is what the network gives today. What was measured over RDMA says
    nothing of TCP between the nodes."""
    asked = {node.transport for node in gang.nodes}
    socket = any(node.network.transport is Transport.TCP for node in plan.nodes) if plan else asked == {"tcp"}
    network = Network(traffic=Traffic.TCP if socket else Traffic.RAILS, assumed=plan is None and asked == {"auto"})
    measured = newest(gang, stack, sum(node.gpus for node in gang.nodes))
    if measured is None:
        return network
    other = socket and _went_over_rdma(measured)
    token = profile.dimensions.hidden_size * BYTES_A_NUMBER
    return replace(
        network,
        everywhere={} if other else _reduces(measured, Between.ALL, token),
        inside=_reduces(measured, Between.NODE, token),
        test=f"nettest {measured.get('id', '')}" + (", which found it slow" if measured["verdict"] == "slow" else ""),
    )


def _reduces(measured: Mapping[str, Any], between: Between, token: int) -> dict[int, float]:
    """Seconds of an all-reduce by tokens of this model; of several nodes the slowest."""
    by_tokens: dict[int, float] = {}
    for test in measured["tests"]:
        if test["kind"] == between.value and test["bytes"] == test["wanted_bytes"] and test["bytes"] % token == 0:
            tokens = int(test["bytes"]) // token
            by_tokens[tokens] = max(by_tokens.get(tokens, 0.0), float(test["measured_us"]) / 1e6)
    return by_tokens


def add_model(checkpoint: Judgement, place: str, *, file: Path | None) -> tuple[Path, dict[str, str]]:
    """Write a profile for a checkpoint directory; returns the file and what is marked in it.

    place: where the checkpoint is, as the profile's source names it; file: named like the profile, by default as the
    directory

    Raises InputError where there is no checkpoint, where it can't become a profile, and where the file exists.
    """
    directory = PurePosixPath(place).name
    name = file.stem if file else directory
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is None:
        raise InputError(
            f"{name!r} is not a valid model name",
            where=f"{file or place}",
            fix="name one with --out NAME.yml, of letters, digits, and . _ + - only",
        )
    profile, unknown = draft(checkpoint, name=name, directory=directory, source=f"the checkpoint in {place}")
    text = profile_file(profile, known_dimensions(profile.dimensions), unknown, template("model.yml.j2"))
    path = file or resources.new_file("models", name)
    if file is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, over=False)
    load_profile(str(path))
    return path, unknown
