"""Published tuned configs: tuned/NAME.yml, the user's own beside the inventory before ours."""

from __future__ import annotations

import re

from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.published import Derived, Published


def load_published(name: str) -> Published:
    """The set with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("set of published configs", name, resources.folders("tuned")))
    address = top.text("address")
    if not address.startswith("https://") or "{file}" not in address:
        raise top.wrong("address", f"found {address!r:.60}, wanted https://... with {{file}} in it")
    files, derived = top.section("files"), top.section("derived")
    found = Published(
        name=top.text("name"),
        source=top.text("source"),
        commit=_hexadecimal(top, "commit", 40),
        licence=top.text("licence"),
        address=address,
        folder=top.text("folder").strip("/"),
        triton=top.text("triton"),
        note=top.text("note", ""),
        files={_path(files, path): _hexadecimal(files, path, 64) for path in files.names()},
        derived={name: _derived(derived.section(name)) for name in derived.names()},
    )
    top.done()
    return found


def _derived(one: Section) -> Derived:
    found = Derived(source=_path(one, one.text("from")), sha256=_hexadecimal(one, "sha256", 64))
    one.done()
    return found


def _path(section: Section, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.endswith(".json"):
        raise section.wrong("", f"found {path!r:.80}, wanted a relative path of a .json file")
    return path


def _hexadecimal(section: Section, key: str, digits: int) -> str:
    text = section.text(key)
    if re.fullmatch(rf"[0-9a-f]{{{digits}}}", text) is None:
        raise section.wrong(key, f"found {text!r:.60}, wanted {digits} hexadecimal digits")
    return text
