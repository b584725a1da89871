"""Model profiles and stacks: models/NAME.yml and stacks/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.benchmark import FIGURES, ExpectedSpeeds, Load
from orchestrator.model.errors import InputError
from orchestrator.model.profile import (
    Advisory,
    Attention,
    Canary,
    CudaGraphs,
    Dimensions,
    ModelProfile,
    ModelRefusal,
    NamedLayout,
    Part,
    Quantisation,
    Stack,
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


def load_stack(name: str) -> Stack:
    """The stack with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("stack", name, resources.folders("stacks")))
    return top.into(
        Stack,
        python=_numbers(top, "python", "3.10"),
        glibc_min=_numbers(top, "glibc_min", ""),
        driver_min=_numbers(top, "driver_min", ""),
        image=_image(top),
        bring=_bring(top),
        advisories=tuple(
            one.into(Advisory, id=name, published=_date(one, "published")) for name, one in top.sections("advisories")
        ),
        looked_up=_date(top, "looked_up"),
    )


def _bring(top: Section) -> tuple[tuple[str, str], ...]:
    found = top.words("bring")
    for pin, _ in found:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*", pin) is None:
            raise top.wrong("bring", f"found {pin!r:.60}, wanted name==version")
    return found


def _image(top: Section) -> str:
    """By digest or by id where we start it: a tag can mean another image on every node."""
    image = top.text("image", "")
    if (
        top.text("install", "venv") != "venv"
        and re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._:/-]*@)?sha256:[0-9a-f]{64}", image) is None
    ):
        raise top.wrong("image", f"found {image!r}, wanted NAME@sha256:64 HEX DIGITS, or an image's id as sha256:...")
    return image


def _date(top: Section, key: str) -> str:
    text = top.text(key, "")
    if text and re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is None:
        raise top.wrong(key, f"found {text!r}, wanted a date as 2026-11-22, in quotes")
    return text


def _numbers(top: Section, key: str, default: str) -> str:
    """Numbers with dots between them, '' where there is no demand; YAML reads an unquoted 3.10 as 3.1."""
    text = top.text(key, default)
    if text and re.fullmatch(r"\d+(\.\d+)*", text) is None:
        raise top.wrong(key, f"found {text!r}, wanted a version as 3.10, in quotes")
    return text


def stack_file(name: str) -> Path:
    """The absolute path of the stack's own file. Raises InputError with the nearest names."""
    return yaml_fields.choose("stack", name, resources.folders("stacks")).absolute()


def stack_lock(name: str) -> Path:
    """The file beside the stack's own that pins every package of its environment: `name==version`, one a line.

    Raises InputError for a stack that has none: it can't be installed automatically.
    """
    file = yaml_fields.choose("stack", name, resources.folders("stacks"))
    lock = file.with_suffix(".lock")
    if not lock.is_file():
        raise InputError(
            f"the stack {file.stem} has no lock file, so it can't be installed",
            where=str(lock),
            fix=f"run `l40s-deploy stack recipe {file.stem} --out DIR` for an image recipe, "
            "or install it yourself into l40s_venv"
            if file.with_suffix(".recipe").is_dir()
            else "write `pip freeze` of a working environment to that file, or install it yourself into l40s_venv",
        )
    return lock.absolute()


def stack_recipe(name: str) -> tuple[Path, Path]:
    """The folder beside the stack's own file that makes an image of it, and that file. Raises InputError for none."""
    file = yaml_fields.choose("stack", name, resources.folders("stacks"))
    folder = file.with_suffix(".recipe")
    if not folder.is_dir():
        having = ", ".join(known for known in stack_names() if _has_recipe(known))
        raise InputError(
            f"the stack {file.stem} has no recipe", where=str(folder), fix=f"stacks with a recipe: {having}"
        )
    return folder, file


def _has_recipe(name: str) -> bool:
    return yaml_fields.choose("stack", name, resources.folders("stacks")).with_suffix(".recipe").is_dir()


def stack_names() -> tuple[str, ...]:
    """Every stack that there is a file for, sorted."""
    return yaml_fields.names(resources.folders("stacks"))
