"""Model profiles: models/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.benchmark import FIGURES, ExpectedSpeeds, Load, Wiring
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

_QUANTISATIONS: dict[str, Quantisation] = {
    "none": "none", "fp8-block": "fp8-block", "fp8-channel": "fp8-channel", "int8-channel": "int8-channel",
    "int4-group": "int4-group", "mxfp4": "mxfp4",
}  # fmt: skip
_GROUPED = {"int4-group": 0, "mxfp4": 32}
"""Quantisations with one scale per group of weights, and how many weights that is where the profile need not say."""
_PARTS: dict[str, Part] = {"attention": "attention", "dense": "dense", "shared": "shared", "experts": "experts"}
_ATTENTIONS: dict[str, Attention] = {"mla": "mla", "gqa": "gqa", "dsa": "dsa", "hybrid": "hybrid"}
_WIRINGS: dict[str, Wiring] = {"right": "right", "wrong": "wrong"}
_REQUIRED = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size",
}  # fmt: skip


def load_profile(name: str) -> ModelProfile:
    """The profile with this name (or in this .yml file). InputError has the nearest names."""
    return _profile(yaml_fields.read(yaml_fields.choose("model", name, resources.folders("models"))))


def profile_names() -> tuple[str, ...]:
    """Every model that there is a profile for, sorted."""
    return yaml_fields.names(resources.folders("models"))


def _profile(top: Section) -> ModelProfile:
    quantisation = _QUANTISATIONS[top.text("quantisation", choices=tuple(_QUANTISATIONS))]
    dimensions = _dimensions(top.section("dimensions"))
    usual = "mla" if dimensions.kv_lora_rank else "gqa"
    profile = ModelProfile(
        name=top.text("name"),
        source=top.text("source"),
        directory=top.text("directory"),
        architecture=top.text("architecture"),
        quantisation=quantisation,
        block=_block(top, quantisation),
        group=_group(top, quantisation),
        parts=_parts(top.section("parts")),
        attention=_ATTENTIONS[top.text("attention", usual, choices=tuple(_ATTENTIONS))],
        window_layers=_window_layers(top, dimensions),
        dimensions=dimensions,
        bytes=top.number("bytes", 0),
        shards=top.number("shards", 0),
        tensor_parallel=top.optional_number("tensor_parallel"),
        pipeline_parallel=top.optional_number("pipeline_parallel"),
        expert_parallel=top.optional_number("expert_parallel"),
        attention_data_parallel=top.optional_number("attention_data_parallel"),
        micro_batch=top.optional_number("micro_batch"),
        tried=top.texts("tried"),
        measured=top.words("measured"),
        expected=_expected(top.section("expected")),
        trust_remote_code=top.flag("trust_remote_code"),
        cuda_graph_max_bs=top.optional_number("cuda_graph_max_bs"),
        torch_compile_max_bs=top.optional_number("torch_compile_max_bs"),
        graphs=_graphs(top),
        flags=_by_version(top.section("flags")),
        env=_by_version(top.section("env")),
        refused=_refused(top.section("refused")),
        layouts=_layouts(top.section("layouts")),
        vision=_vision(top.section("vision")) if "vision" in top.names() else None,
        canary=_canary(top.section("canary")),
    )
    top.done()
    if profile.directory.startswith("/") or ".." in profile.directory.split("/"):
        raise top.wrong("directory", f"found {profile.directory!r}, wanted a name below the nodes' model root")
    return profile


def _block(top: Section, quantisation: Quantisation) -> tuple[int, int]:
    if quantisation != "fp8-block":
        if "block" in top.names():
            raise top.wrong("block", f"found a block size with quantisation {quantisation}, wanted none")
        return 0, 0
    height, width = top.numbers("block", 2)
    return height, width


def _dimensions(section: Section) -> Dimensions:
    values = {
        name: section.number(name, least=1) if name in _REQUIRED else section.number(name, 0)
        for name in Dimensions.__dataclass_fields__
    }
    section.done()
    return Dimensions(**values)


def _group(top: Section, quantisation: Quantisation) -> int:
    if quantisation not in _GROUPED:
        if "group" in top.names():
            raise top.wrong("group", f"found a group size with quantisation {quantisation}, wanted none")
        return 0
    return top.number("group", _GROUPED[quantisation] or None, least=1)


def _parts(section: Section) -> tuple[tuple[Part, Quantisation], ...]:
    """Part -> quantisation, of those that differ."""
    found = tuple(
        (part, _QUANTISATIONS[section.text(name, choices=tuple(_QUANTISATIONS))])
        for name, part in _PARTS.items()
        if name in section.names()
    )
    section.done()
    return found


def _by_version(section: Section) -> tuple[tuple[str, str, str], ...]:
    """Stack version prefix ('' for every version) -> name -> value."""
    return tuple((_version(prefix), name, value) for prefix in section.names() for name, value in section.words(prefix))


def _graphs(top: Section) -> tuple[CudaGraphs, ...]:
    """By prefix of the engine version."""
    every = top.section("graphs")
    found = []
    for prefix in every.names():
        entry = every.section(prefix)
        if not re.fullmatch(r"all|\d+(\.\w+)*\.?", prefix):
            raise every.wrong(prefix, f"found {prefix!r}, wanted all or the beginning of an engine version, as 0.5")
        one = CudaGraphs(
            versions=_version(prefix),
            sizes=_sizes(entry),
            max_bs=entry.optional_number("max_bs"),
            torch_compile_max_bs=entry.optional_number("torch_compile_max_bs", least=0),
        )
        entry.done()
        if one.sizes and one.max_bs is not None:
            raise entry.wrong("max_bs", "found it beside sizes, wanted one of both: the last size is the largest batch")
        for key, twice in (
            ("cuda_graph_max_bs", one.sizes or one.max_bs is not None),
            ("torch_compile_max_bs", one.torch_compile_max_bs is not None),
        ):
            if twice and prefix == "all" and key in top.names():
                raise top.wrong(key, "found it beside graphs.all, wanted one of both")
        found.append(one)
    return tuple(found)


def _sizes(entry: Section) -> tuple[int, ...]:
    if "sizes" not in entry.names():
        return ()
    sizes = entry.integers("sizes")
    if not sizes or list(sizes) != sorted({*sizes}):
        raise entry.wrong("sizes", f"found {list(sizes)!r:.60}, wanted batch sizes in rising order, each once")
    return sizes


def _version(prefix: str) -> str:
    return "" if prefix == "all" else prefix


def _refused(section: Section) -> tuple[ModelRefusal, ...]:
    """By prefix of the engine version."""
    found = []
    for prefix in section.names():
        entry = section.section(prefix)
        found.append(
            ModelRefusal(
                versions=_version(prefix),
                below=entry.number("below", 0),
                reason=entry.text("reason"),
                source=entry.text("source"),
            )
        )
        entry.done()
    return tuple(found)


def _layouts(section: Section) -> tuple[NamedLayout, ...]:
    """By a name of their own."""
    found = []
    for name in section.names():
        entry = section.section(name)
        found.append(
            NamedLayout(
                name=name,
                tensor_parallel=entry.number("tensor_parallel", least=1),
                pipeline_parallel=entry.number("pipeline_parallel", 1, least=1),
                expert_parallel=entry.number("expert_parallel", 1, least=1),
                attention_data_parallel=entry.number("attention_data_parallel", 1, least=1),
                micro_batch=entry.optional_number("micro_batch"),
                flags=entry.words("flags"),
                env=entry.words("env"),
                versions=_version(entry.text("versions", "all")),
                note=entry.text("note", ""),
            )
        )
        entry.done()
    return tuple(found)


def _window_layers(top: Section, dimensions: Dimensions) -> int:
    found = top.number("window_layers", 0)
    if found > dimensions.num_hidden_layers:
        raise top.wrong(
            "window_layers", f"found {found}, wanted at most num_hidden_layers, {dimensions.num_hidden_layers}"
        )
    return found


def _vision(section: Section) -> Vision:
    vision = Vision(
        layers=section.number("layers", least=1),
        hidden_size=section.number("hidden_size", least=1),
        bytes=section.number("bytes", least=1),
    )
    section.done()
    return vision


def _expected(section: Section) -> tuple[ExpectedSpeeds, ...]:
    """Measured speeds by a name of their own."""
    return tuple(_measured_speed(name, section.section(name)) for name in section.names())


def _measured_speed(name: str, entry: Section) -> ExpectedSpeeds:
    load = entry.section("load")
    found = ExpectedSpeeds(
        name=name,
        source=entry.text("source"),
        stack=entry.text("stack"),
        layout=entry.text("layout"),
        gpu=entry.text("gpu"),
        wiring=_WIRINGS[entry.text("wiring", "right", choices=tuple(_WIRINGS))],
        load=Load(
            **{field: load.number(field, getattr(Load(), field), least=1) for field in Load.__dataclass_fields__}
        ),
        figures=_figures(entry.section("figures")),
        dataset=entry.text("dataset", ""),
    )
    load.done()
    entry.done()
    return found


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


def _canary(section: Section) -> Canary:
    canary = Canary(
        prompt=section.text("prompt"),
        max_tokens=section.number("max_tokens", 16, least=1),
        expect_any=section.texts("expect_any"),
    )
    section.done()
    return canary
