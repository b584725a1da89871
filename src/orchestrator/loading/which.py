"""Which cluster a command means, and the operator's own defaults ($L40S_CONFIG or config.yml)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.protocol.errors import InputError


@dataclass(frozen=True, slots=True)
class InventoryChoice:
    """The inventory file to use, and the reason."""

    path: Path
    reason: str


def lab_root() -> Path:
    """Where labs keep their state, one folder a lab; $L40S_LAB_ROOT moves it."""
    default = "/run/l40s-lab" if os.geteuid() == 0 else f"/tmp/l40s-lab-{os.geteuid()}"  # noqa: S108
    return Path(os.environ.get("L40S_LAB_ROOT", default))


def choose_inventory(option: str | None) -> InventoryChoice:
    """--inventory, else $L40S_INVENTORY, else ./inventory/hosts.yml, else the config file's, else the only running
    lab's."""
    if option:
        return InventoryChoice(Path(option), "--inventory")
    if variable := os.environ.get("L40S_INVENTORY"):
        return InventoryChoice(Path(variable), "$L40S_INVENTORY")
    here = Path("inventory/hosts.yml")
    if here.exists():
        return InventoryChoice(here, "of this directory")
    config = load_config()
    if config.inventory is not None:
        return InventoryChoice(config.inventory, f"inventory in {config.path}")
    labs = sorted(lab_root().glob("*/inventory.yml"))
    if len(labs) == 1:
        return InventoryChoice(labs[0], f"the running lab {labs[0].parent.name!r}, because no inventory was given")
    if labs:
        names = ", ".join(path.parent.name for path in labs)
        raise InputError(
            f"several labs are running ({names}) and no inventory was given",
            where="command line",
            fix=f"--inventory {labs[0]}",
        )
    raise InputError(
        "no inventory was given, ./inventory/hosts.yml does not exist and no lab is running",
        where="command line",
        fix="run `l40s-deploy init` to write one, or name it: --inventory FILE; without GPUs, run `l40s-deploy lab up`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """path: where it was read, None where there is no such file; options: {verb: {option without --: value}}; lookups:
    whether an inventory's templates may call Ansible's lookups, which can run programs here."""

    path: Path | None = None
    inventory: Path | None = None
    quiet: bool = False
    lookups: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def load_config() -> Config:
    """The operator's defaults; none where there is no file. Raises InputError where it can't be read."""
    named, base = os.environ.get("L40S_CONFIG"), os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(named or f"{base}/l40s-deploy/config.yml").expanduser()
    if not path.exists():
        if named:
            raise InputError("does not exist", where=str(path), fix="correct $L40S_CONFIG, or unset it")
        return Config()
    from orchestrator.loading.yaml_fields import read  # 30 ms for who has no such file

    top = read(path)
    inventory = top.text("inventory", "")
    options = top.section("options")
    return top.into(
        Config,
        path=path,
        inventory=(path.parent / Path(inventory).expanduser()) if inventory else None,
        options={verb: options.section(verb).all() for verb in options.names()},
    )
