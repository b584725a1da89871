"""Stacks: stacks/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.errors import InputError
from orchestrator.model.profile import Advisory, Stack


def load_stack(name: str) -> Stack:
    """The stack with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("stack", name, resources.folders("stacks")))
    return top.into(
        Stack,
        python=_version(top, "python", "3.10"),
        glibc_min=_version(top, "glibc_min", ""),
        driver_min=_version(top, "driver_min", ""),
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
