"""The text of our templates, for `rendering`, which reads no file itself."""

from __future__ import annotations

from orchestrator.loading.resources import data_dir


def template(name: str) -> str:
    """The template's text, for example of launch.sh.j2."""
    return (data_dir("templates") / name).read_text("utf-8")
