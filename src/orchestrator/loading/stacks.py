"""Stacks: stacks/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast, get_args

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.errors import InputError
from orchestrator.model.profile import Advisory, Install, Stack


def load_stack(name: str) -> Stack:
    """The stack with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("stack", name, resources.folders("stacks")))
    device = top.text("device", "cuda", choices=("cuda", "cpu"))
    install = cast("Install", top.text("install", "venv", choices=get_args(Install)))
    stack = Stack(
        name=top.text("name"),
        source=top.text("source"),
        dialect=top.text("dialect"),
        engine_version=top.text("engine_version"),
        nccl_version=top.text("nccl_version", ""),
        torch_version=top.text("torch_version", ""),
        triton_version=top.text("triton_version", ""),
        python=_version(top, "python", "3.10"),
        glibc_min=_version(top, "glibc_min", ""),
        driver_min=_version(top, "driver_min", ""),
        system_packages=top.texts("system_packages"),
        install=install,
        image=_image(top, install),
        contains=top.texts("contains"),
        bring=_bring(top),
        evidence=top.words("evidence"),
        device="cpu" if device == "cpu" else "cuda",
        launch=top.texts("launch"),
        env=top.words("env"),
        flags=top.words("flags"),
        tested=top.text("tested", ""),
        advisories=_advisories(top.section("advisories")) if "advisories" in top.names() else (),
        looked_up=_date(top, "looked_up"),
    )
    top.done()
    return stack


def _bring(top: Section) -> tuple[tuple[str, str], ...]:
    found = top.words("bring")
    for pin, _ in found:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*", pin) is None:
            raise top.wrong("bring", f"found {pin!r:.60}, wanted name==version")
    return found


def _image(top: Section, install: Install) -> str:
    """By digest or by id where we start it: a tag can mean another image on every node."""
    image = top.text("image", "")
    if install != "venv" and re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._:/-]*@)?sha256:[0-9a-f]{64}", image) is None:
        raise top.wrong("image", f"found {image!r}, wanted NAME@sha256:64 HEX DIGITS, or an image's id as sha256:...")
    return image


def _advisories(known: Section) -> tuple[Advisory, ...]:
    found = []
    for name in known.names():
        one = known.section(name)
        found.append(
            Advisory(
                id=name,
                published=_date(one, "published"),
                package=one.text("package"),
                what=one.text("what"),
                when=one.text("when"),
                source=one.text("source"),
            )
        )
        one.done()
    return tuple(found)


def _date(top: Section, key: str) -> str:
    text = top.text(key, "")
    if text and re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is None:
        raise top.wrong(key, f"found {text!r}, wanted a date as 2026-11-22, in quotes")
    return text


def _version(top: Section, key: str, default: str) -> str:
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
