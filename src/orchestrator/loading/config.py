"""The operator's own defaults: $L40S_CONFIG, else l40s-deploy/config.yml below $XDG_CONFIG_HOME (~/.config).

inventory: ~/clusters/l40s/hosts.yml
quiet: true
options:
  up: {model: DeepSeek-V3-0324-Block64x64, timeout: 2h}
  status: {gang: [gang0]}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """path: where it was read, None where there is no such file; options: {verb: {option without --: value}}."""

    path: Path | None = None
    inventory: Path | None = None
    quiet: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def config_path() -> Path:
    """Where the file is looked for."""
    if named := os.environ.get("L40S_CONFIG"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "l40s-deploy" / "config.yml"


def load_config() -> Config:
    """The operator's defaults; none where there is no file. Raises InputError where it can't be read."""
    path = config_path()
    if not path.exists():
        if os.environ.get("L40S_CONFIG"):
            raise InputError("does not exist", where=str(path), fix="correct $L40S_CONFIG, or unset it")
        return Config()
    from orchestrator.loading.yaml_fields import read  # 30 ms for who has no such file

    top = read(path)
    inventory = top.text("inventory", "")
    options = top.section("options")
    found = Config(
        path=path,
        inventory=(path.parent / Path(inventory).expanduser()) if inventory else None,
        quiet=top.flag("quiet"),
        options={verb: options.section(verb).all() for verb in options.names()},
    )
    top.done()
    return found
