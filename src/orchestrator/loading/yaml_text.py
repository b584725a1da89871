"""YAML that we write for other programs and for people to read."""

from __future__ import annotations

from typing import Any

import yaml

WIDTH = 110


class _Plain(yaml.SafeDumper):
    """Lists are indented below their key, as people write them, and nothing is an anchor."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - PyYAML's signature
        """Never indentless."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """What occurs twice is written twice."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Lines as lines: a script is read by people too."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


def yaml_text(document: Any, *comment: str) -> str:
    """A document below its comment's lines."""
    text = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=WIDTH, allow_unicode=True)
    return "".join(f"# {line}\n" for line in comment) + text
