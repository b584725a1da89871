"""Model profiles and stacks: models/NAME.yml and stacks/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, get_args

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.engine_versions import NAMED_VERSIONS
from orchestrator.model.profile import (
    FIGURES,
    Advisory,
    Attention,
    CudaGraphs,
    Dimensions,
    ExpectedSpeeds,
    Load,
    ModelProfile,
    ModelRefusal,
    NamedLayout,
    Part,
    Quantisation,
    Stack,
    Vision,
)
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Canary

_GROUPED = {"int4-group": 0, "mxfp4": 32}
"""Quantisations with one scale per group of weights, and how many weights that is where the profile need not say."""


def load_profile(name: str) -> ModelProfile:
    """The profile with this name (or in this .yml file). InputError has the nearest names."""
    return _profile(yaml_fields.read(_file("models", name)))


def _file(kind: Literal["models", "stacks"], name: str) -> Path:
    return yaml_fields.choose(kind[:-1], name, resources.folders(kind))


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
        group=top.number("group", _GROUPED[quantisation] or None, least=1)
        if _has_own(top, "group", quantisation, quantisation in _GROUPED)
        else 0,
        parts=_parts(top.section("parts")),
        attention=top.text("attention", "mla" if dimensions.kv_lora_rank else "gqa", choices=get_args(Attention)),
        window_layers=layers,
        dimensions=dimensions,
        expected=tuple(_expected(name, entry) for name, entry in top.sections("expected")),
        graphs=tuple(_graphs(top, versions, entry) for versions, entry in top.sections("graphs")),
        flags=_by_version(top.section("flags")),
        env=_by_version(top.section("env")),
        refused=tuple(
            entry.into(ModelRefusal, versions=_versions(entry, versions)) for versions, entry in top.sections("refused")
        ),
        layouts=tuple(
            entry.into(NamedLayout, name=name, versions=_versions(entry, entry.text("versions", "all"), "versions"))
            for name, entry in top.sections("layouts")
        ),
        vision=top.section("vision").into(Vision) if "vision" in top.names() else None,
        canary=top.section("canary").into(Canary),
    )
    if profile.directory.startswith("/") or ".." in profile.directory.split("/"):
        raise top.wrong("directory", f"found {profile.directory!r}, wanted a name below the nodes' model root")
    return profile


def _block(top: Section, quantisation: str) -> tuple[int, int]:
    if not _has_own(top, "block", quantisation, quantisation == "fp8-block"):
        return 0, 0
    height, width = top.integers("block", 2)
    return height, width


def _has_own(top: Section, size: str, quantisation: str, may: bool) -> bool:
    if size in top.names() and not may:
        raise top.wrong(size, f"found a {size} size with quantisation {quantisation}, wanted none")
    return may


def _parts(section: Section) -> tuple[tuple[str, str], ...]:
    """Part -> quantisation, of those that differ."""
    every = get_args(Quantisation)
    parts = tuple((part, section.text(part, choices=every)) for part in get_args(Part) if part in section.names())
    section.done()
    return parts


def _by_version(section: Section) -> tuple[tuple[str, str, str], ...]:
    """Engine versions ('' for all), name, value."""
    return tuple(
        (_versions(section, versions, versions), name, value)
        for versions in section.names()
        for name, value in section.words(versions)
    )


def _graphs(top: Section, versions: str, entry: Section) -> CudaGraphs:
    graphs = entry.into(
        CudaGraphs,
        versions=_versions(entry, versions),
        sizes=_sizes(entry),
        torch_compile_max_bs=entry.optional_number("torch_compile_max_bs", least=0),
    )
    if graphs.sizes and graphs.max_bs is not None:
        raise entry.wrong("max_bs", "found it beside sizes, wanted one of both: the last size is the largest batch")
    captured, compiled = graphs.sizes or graphs.max_bs is not None, graphs.torch_compile_max_bs is not None
    for key, twice in (("cuda_graph_max_bs", captured), ("torch_compile_max_bs", compiled)):
        if twice and versions == "all" and key in top.names():
            raise top.wrong(key, "found it beside graphs.all, wanted one of both")
    return graphs


def _sizes(entry: Section) -> tuple[int, ...]:
    if "sizes" not in entry.names():
        return ()
    sizes = entry.integers("sizes")
    if not sizes or list(sizes) != sorted({*sizes}):
        raise entry.wrong("sizes", f"found {list(sizes)!r:.60}, wanted batch sizes in rising order, each once")
    return sizes


def _versions(section: Section, versions: str, key: str = "") -> str:
    """As `holds_for` reads them. key: where they stand in their section; '' where its own name is meant."""
    if not re.fullmatch(NAMED_VERSIONS, versions):
        wanted = "wanted all, the beginning of an engine version, as 0.5, or the first version with a + behind it"
        raise section.wrong(key, f"found {versions!r}, {wanted}")
    return "" if versions == "all" else versions


def _expected(name: str, entry: Section) -> ExpectedSpeeds:
    """Measured speeds by a name of their own."""
    load, section, known = (
        entry.section("load").into(Load),
        entry.section("figures"),
        {figure.name for figure in FIGURES},
    )
    figures = tuple((figure, _figure(section, figure, known)) for figure in section.names())
    return entry.into(ExpectedSpeeds, name=name, load=load, figures=figures)


def _figure(section: Section, name: str, known: Collection[str]) -> float:
    text = section.scalar(name)
    if name not in known:
        raise section.wrong(name, "found a figure that is not known", "known: " + ", ".join(sorted(known)))
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e12:
            return float(text)
    raise section.wrong(name, f"found {text!r}, wanted a number above zero")


def load_stack(name: str) -> Stack:
    """The stack with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(_file("stacks", name))
    return top.into(
        Stack,
        python=_like(top, "python", *_NUMBERS, "3.10"),
        glibc_min=_like(top, "glibc_min", *_NUMBERS),
        driver_min=_like(top, "driver_min", *_NUMBERS),
        image=_image(top),
        bring=_bring(top),
        advisories=tuple(
            advisory.into(Advisory, id=name, published=_like(advisory, "published", *_DATE))
            for name, advisory in top.sections("advisories")
        ),
        looked_up=_like(top, "looked_up", *_DATE),
    )


def _bring(top: Section) -> tuple[tuple[str, str], ...]:
    pins = top.words("bring")
    for pin, _ in pins:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*", pin) is None:
            raise top.wrong("bring", f"found {pin!r:.60}, wanted name==version")
    return pins


def _image(top: Section) -> str:
    """By digest or by id where we start it: a tag can mean another image on every node."""
    image, pinned = top.text("image", ""), r"([A-Za-z0-9][A-Za-z0-9._:/-]*@)?sha256:[0-9a-f]{64}"
    if top.text("install", "venv") != "venv" and re.fullmatch(pinned, image) is None:
        raise top.wrong("image", f"found {image!r}, wanted NAME@sha256:64 HEX DIGITS, or an image's id as sha256:...")
    return image


_DATE = (r"\d{4}-\d{2}-\d{2}", "a date as 2026-11-22")
_NUMBERS = (r"\d+(\.\d+)*", "a version as 3.10")
"""YAML reads an unquoted 3.10 as 3.1."""


def _like(top: Section, key: str, pattern: str, wanted: str, default: str = "") -> str:
    text = top.text(key, default)
    if text and re.fullmatch(pattern, text) is None:
        raise top.wrong(key, f"found {text!r}, wanted {wanted}, in quotes")
    return text


def stack_file(name: str) -> Path:
    """The absolute path of the stack's own file. Raises InputError with the nearest names."""
    return _file("stacks", name).absolute()


def stack_lock(name: str) -> Path:
    """The file beside the stack's own that pins every package of its environment: `name==version`, one a line.

    Raises InputError for a stack that has none: it can't be installed automatically.
    """
    file = stack_file(name)
    lock = file.with_suffix(".lock")
    if lock.is_file():
        return lock
    has_recipe = file.with_suffix(".recipe").is_dir()
    recipe = f"run `l40s-deploy stack recipe {file.stem} --out {file.stem}-image` for an image recipe"
    fix = recipe if has_recipe else "write `pip freeze` of a working environment to that file"
    what = f"the stack {file.stem} has no lock file, so it can't be installed"
    raise InputError(what, where=str(lock), fix=f"{fix}, or install it yourself into l40s_venv")


def stack_recipe(name: str) -> tuple[Path, Path]:
    """The folder beside the stack's own file that makes an image of it, and that file. Raises InputError for none."""
    file = _file("stacks", name)
    folder = file.with_suffix(".recipe")
    if not folder.is_dir():
        having = ", ".join(stack for stack in stack_names() if _file("stacks", stack).with_suffix(".recipe").is_dir())
        what, fix = f"the stack {file.stem} has no recipe", f"stacks with a recipe: {having}"
        raise InputError(what, where=str(folder), fix=fix)
    return folder, file


def stack_names() -> tuple[str, ...]:
    """Every stack that there is a file for, sorted."""
    return yaml_fields.names(resources.folders("stacks"))


def reported_profile(name: str) -> ModelProfile:
    """The profile of a name that a node reports: one that is known here. What a node says is never a path.

    Raises InputError where there is none.
    """
    return load_profile(_known("model", name, profile_names()))


def reported_stack(name: str) -> Stack:
    """The same of a stack. A file that the inventory names by a path goes first, and may be called otherwise than its
    stack."""
    for path in resources.stacks_by_path():
        with contextlib.suppress(InputError):
            stack = load_stack(str(path))
            if stack.name == name:
                return stack
    return load_stack(_known("stack", name, stack_names()))


def _known(kind: str, name: str, names: Collection[str]) -> str:
    if name in names and not name.endswith((".yml", ".yaml")):
        return name
    raise InputError(
        f"a node reports the {kind} {name!r:.60}, of which this machine has no file",
        where=kind,
        fix=f"put its {kind}s/NAME.yml beside the inventory",
    )
