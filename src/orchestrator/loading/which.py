"""Which cluster a command means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.loading.config import load_config
from orchestrator.model.errors import InputError


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
        return InventoryChoice(here, "./inventory/hosts.yml")
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
        fix="use --inventory FILE (inventory/reference.yml is an annotated example), or run `l40s-deploy lab up`",
    )
