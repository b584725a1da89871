"""The text of our templates, for `rendering`, which reads no file itself."""

from __future__ import annotations

from orchestrator.loading.resources import data_dir


def template(name: str) -> str:
    """The template's text, for example of launch.sh.j2."""
    return (data_dir("templates") / name).read_text("utf-8")


def templates(*names: str) -> str:
    """Several, one after the other: what the earlier ones define, the later ones use."""
    return "".join(map(template, names))
