"""Model profiles: models/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

from orchestrator.loading import own, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.benchmark import FIGURES, Expected, Load, Wiring
from orchestrator.model.profile import Canary, Dimensions, ModelProfile, Quantisation

_QUANTISATIONS: dict[str, Quantisation] = {
    "none": "none", "fp8-block": "fp8-block", "fp8-channel": "fp8-channel", "int8-channel": "int8-channel",
}  # fmt: skip
_WIRINGS: dict[str, Wiring] = {"right": "right", "wrong": "wrong"}
_REQUIRED = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size",
}  # fmt: skip


def load_profile(name: str) -> ModelProfile:
    """The profile with this name (or in this .yml file). InputError has the nearest names."""
    return _profile(yaml_fields.read(yaml_fields.choose("model", name, own.folders("models"))))


def profile_names() -> tuple[str, ...]:
    """Every model that there is a profile for, sorted."""
    return yaml_fields.names(own.folders("models"))


def _profile(top: Section) -> ModelProfile:
    quantisation = _QUANTISATIONS[top.text("quantisation", choices=tuple(_QUANTISATIONS))]
    profile = ModelProfile(
        name=top.text("name"),
        source=top.text("source"),
        directory=top.text("directory"),
        architecture=top.text("architecture"),
        quantisation=quantisation,
        block=_block(top, quantisation),
        dimensions=_dimensions(top.section("dimensions")),
        bytes=top.number("bytes", 0),
        shards=top.number("shards", 0),
        tensor_parallel=top.optional_number("tensor_parallel"),
        pipeline_parallel=top.optional_number("pipeline_parallel"),
        expert_parallel=top.optional_number("expert_parallel"),
        tried=top.texts("tried"),
        measured=top.words("measured"),
        expected=_expected(top.section("expected")),
        trust_remote_code=top.flag("trust_remote_code"),
        cuda_graph_max_bs=top.optional_number("cuda_graph_max_bs"),
        torch_compile_max_bs=top.optional_number("torch_compile_max_bs"),
        flags=_flags(top.section("flags")),
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


def _flags(section: Section) -> tuple[tuple[str, str, str], ...]:
    """Stack version prefix ('' for every version) -> flag -> value."""
    flags = []
    for prefix in section.names():
        flags += [(prefix if prefix != "all" else "", flag, value) for flag, value in section.words(prefix)]
    return tuple(flags)


def _expected(section: Section) -> tuple[Expected, ...]:
    """Measured speeds by a name of their own."""
    return tuple(_measured_speed(name, section.section(name)) for name in section.names())


def _measured_speed(name: str, entry: Section) -> Expected:
    load = entry.section("load")
    found = Expected(
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
