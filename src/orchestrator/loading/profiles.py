"""Model profiles: models/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re
from typing import get_args

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.benchmark import FIGURES, ExpectedSpeeds, Load
from orchestrator.model.profile import (
    Attention,
    Canary,
    CudaGraphs,
    Dimensions,
    ModelProfile,
    ModelRefusal,
    NamedLayout,
    Part,
    Quantisation,
    Vision,
)

_GROUPED = {"int4-group": 0, "mxfp4": 32}
"""Quantisations with one scale per group of weights, and how many weights that is where the profile need not say."""


def load_profile(name: str) -> ModelProfile:
    """The profile with this name (or in this .yml file). InputError has the nearest names."""
    return _profile(yaml_fields.read(yaml_fields.choose("model", name, resources.folders("models"))))


def profile_names() -> tuple[str, ...]:
    """Every model that there is a profile for, sorted."""
    return yaml_fields.names(resources.folders("models"))


def _profile(top: Section) -> ModelProfile:
    quantisation = top.text("quantisation", choices=get_args(Quantisation))
    dimensions = top.section("dimensions").into(Dimensions)
    layers = top.number("window_layers", 0)
    if layers > dimensions.num_hidden_layers:
        most = f"at most num_hidden_layers, {dimensions.num_hidden_layers}"
        raise top.wrong("window_layers", f"found {layers}, wanted {most}")
    profile = top.into(
        ModelProfile,
        quantisation=quantisation,
        block=_block(top, quantisation),
        group=_group(top, quantisation),
        parts=_parts(top.section("parts")),
        attention=top.text("attention", "mla" if dimensions.kv_lora_rank else "gqa", choices=get_args(Attention)),
        window_layers=layers,
        dimensions=dimensions,
        expected=tuple(_expected(name, entry) for name, entry in top.sections("expected")),
        graphs=_graphs(top),
        flags=_by_version(top.section("flags")),
        env=_by_version(top.section("env")),
        refused=tuple(entry.into(ModelRefusal, versions=_version(prefix)) for prefix, entry in top.sections("refused")),
        layouts=tuple(
            entry.into(NamedLayout, name=name, versions=_version(entry.text("versions", "all")))
            for name, entry in top.sections("layouts")
        ),
        vision=top.section("vision").into(Vision) if "vision" in top.names() else None,
        canary=top.section("canary").into(Canary),
    )
    if profile.directory.startswith("/") or ".." in profile.directory.split("/"):
        raise top.wrong("directory", f"found {profile.directory!r}, wanted a name below the nodes' model root")
    return profile


def _block(top: Section, quantisation: str) -> tuple[int, int]:
    if quantisation != "fp8-block":
        if "block" in top.names():
            raise top.wrong("block", f"found a block size with quantisation {quantisation}, wanted none")
        return 0, 0
    height, width = top.numbers("block", 2)
    return height, width


def _group(top: Section, quantisation: str) -> int:
    if quantisation not in _GROUPED:
        if "group" in top.names():
            raise top.wrong("group", f"found a group size with quantisation {quantisation}, wanted none")
        return 0
    return top.number("group", _GROUPED[quantisation] or None, least=1)


def _parts(section: Section) -> tuple[tuple[str, str], ...]:
    """Part -> quantisation, of those that differ."""
    every = get_args(Quantisation)
    found = tuple((part, section.text(part, choices=every)) for part in get_args(Part) if part in section.names())
    section.done()
    return found


def _by_version(section: Section) -> tuple[tuple[str, str, str], ...]:
    """Stack version prefix ('' for every version) -> name -> value."""
    return tuple((_version(prefix), name, value) for prefix in section.names() for name, value in section.words(prefix))


def _graphs(top: Section) -> tuple[CudaGraphs, ...]:
    """By prefix of the engine version."""
    every = top.section("graphs")
    return tuple(_graphs_of(top, every, prefix) for prefix in every.names())


def _graphs_of(top: Section, every: Section, prefix: str) -> CudaGraphs:
    if not re.fullmatch(r"all|\d+(\.\w+)*\.?", prefix):
        raise every.wrong(prefix, f"found {prefix!r}, wanted all or the beginning of an engine version, as 0.5")
    entry = every.section(prefix)
    one = entry.into(
        CudaGraphs,
        versions=_version(prefix),
        sizes=_sizes(entry),
        torch_compile_max_bs=entry.optional_number("torch_compile_max_bs", least=0),
    )
    if one.sizes and one.max_bs is not None:
        raise entry.wrong("max_bs", "found it beside sizes, wanted one of both: the last size is the largest batch")
    for key, twice in (
        ("cuda_graph_max_bs", one.sizes or one.max_bs is not None),
        ("torch_compile_max_bs", one.torch_compile_max_bs is not None),
    ):
        if twice and prefix == "all" and key in top.names():
            raise top.wrong(key, "found it beside graphs.all, wanted one of both")
    return one


def _sizes(entry: Section) -> tuple[int, ...]:
    if "sizes" not in entry.names():
        return ()
    sizes = entry.integers("sizes")
    if not sizes or list(sizes) != sorted({*sizes}):
        raise entry.wrong("sizes", f"found {list(sizes)!r:.60}, wanted batch sizes in rising order, each once")
    return sizes


def _version(prefix: str) -> str:
    return "" if prefix == "all" else prefix


def _expected(name: str, entry: Section) -> ExpectedSpeeds:
    """Measured speeds by a name of their own."""
    load, figures = entry.section("load").into(Load), _figures(entry.section("figures"))
    return entry.into(ExpectedSpeeds, name=name, load=load, figures=figures)


def _figures(section: Section) -> tuple[tuple[str, float], ...]:
    known = {figure.name for figure in FIGURES}
    figures = []
    for name in section.names():
        text = section.scalar(name)
        if name not in known:
            raise section.wrong(name, "found a figure that is not known", "known: " + ", ".join(sorted(known)))
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e12:
            raise section.wrong(name, f"found {text!r}, wanted a number above zero")
        figures.append((name, value))
    return tuple(figures)
