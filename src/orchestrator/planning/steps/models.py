"""`models`: every profile with the layouts that fit a cluster; a new profile from a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.loading import resources
from orchestrator.loading.library import Library
from orchestrator.loading.resources import template
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning.judgement import Judgement
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import LayoutFit, ModelOffer, offer
from orchestrator.planning.page_cache import FAST_DISK, SLOW_DISK
from orchestrator.planning.profile_draft import draft, known_dimensions
from orchestrator.planning.steps.measured import assumed_network
from orchestrator.planning.steps.plan import chosen_stack, who_can
from orchestrator.records.documents import write_whole
from orchestrator.rendering import profile_file

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
    for profile in map(Library.profile, Library.models() if name is None else (name,)):
        offers = [_offered(profile, Library.stack(chosen_stack((gang,), profile, stack).name), gang) for gang in gangs]
        listed.append(ModelListing(profile, tuple(offers), who_can(profile)))
    return tuple(listed)


def _offered(profile: ModelProfile, stack: Stack, gang: GangSpec) -> ModelOffer:
    return offer(profile, stack, gang, network=assumed_network(gang, stack.name, profile))


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
                "name": str(fit.degrees),
                "layout": fit.name or None,
                "flags": fit.degrees.flags,
                "tensor_parallel": fit.degrees.tensor,
                "pipeline_parallel": fit.degrees.pipeline,
                "expert_parallel": fit.degrees.expert,
                "attention_data_parallel": fit.degrees.attention,
                "weights_bytes_per_gpu": fit.weights,
                "kv_tokens": fit.kv_tokens,
                "measured": fit.measured,
                "default": fit.default,
                **costs_json(fit),
                **speeds_json(fit),
            }
            for fit in each.fits
        ],
        "refusal": {"what": each.refusal, "fix": each.instead} if each.refusal else None,
    }


def costs_json(fit: LayoutFit) -> dict[str, Any]:
    """What a layout costs the network and a start, calculated: bytes, and seconds of reading from two kinds of disk."""
    return {
        "network_bytes_per_token": fit.sent,
        "start": {
            "read_bytes_per_node": fit.read,
            "read_s": {"5 GB/s": round(fit.read / FAST_DISK), "1 GB/s": round(fit.read / SLOW_DISK)},
        },
    }


def speeds_json(fit: LayoutFit) -> dict[str, Any]:
    """Decode speed of a layout, as it was calculated; null where nothing can be said."""
    found = fit.speeds
    if found is None:
        return {"tokens_per_s": None, "calculated": True, "basis": None, "error": None, "not_calculated": fit.unsaid}
    figures = {str(batch): round(speed, 1) for batch, speed in found.tokens_per_s.items()}
    return {
        "tokens_per_s": figures,
        "calculated": True,
        "basis": found.basis,
        "error": round(found.error, 3),
        "not_calculated": None,
    }


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
    made = draft(checkpoint, name=name, directory=directory, source=f"the checkpoint in {place}")
    text = profile_file(made.profile, known_dimensions(made.profile.dimensions), made.unknown, template("model.yml.j2"))
    path = file or resources.new_file("models", name)
    if file is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, over=False)
    Library.profile(str(path))
    return path, dict(made.unknown)
