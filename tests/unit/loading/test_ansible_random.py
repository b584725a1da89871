"""Random inventories: we read them as Ansible's own classes do, or refuse them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from orchestrator.loading.ansible_yaml import AnsibleInventory, read_ansible_inventory
from orchestrator.model.errors import InputError

COUNT = 60
SEED = 20250801
GROUPS = [*(f"g{number}" for number in range(6)), "all", "ungrouped"]
HOSTS = ["h[0:1]", "h0", "h2", "h[1:3]", "h4:2200"]

ORACLE = """
import json, sys
from ansible.cli.inventory import InventoryCLI
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.vars.manager import VariableManager
init_plugin_loader([])
for path in json.load(sys.stdin):
    loader = DataLoader()
    inventory = InventoryManager(loader, [path])
    variables = VariableManager(loader, inventory)
    def of(host):
        return InventoryCLI._remove_internal(variables.get_vars(host=host, include_hostvars=False, stage="all"))
    print(json.dumps(inventory._inventory.processed_sources and {
        "groups": {name: [[host.name for host in group.hosts], [child.name for child in group.child_groups]]
                   for name, group in inventory.groups.items() if name not in ("all", "ungrouped")},
        "hosts": {host.name: of(host) for host in inventory.hosts.values()},
    } or None))
"""


def made(dice: random.Random, folder: Path) -> Path:
    """A random inventory with files in group_vars/ and host_vars/."""

    def variables() -> dict[str, Any]:
        found: dict[str, Any] = {name: dice.randint(0, 99) for name in dice.sample("abcdef", dice.randint(0, 3))}
        if dice.random() < 0.2:
            found["ansible_group_priority"] = dice.randint(0, 12)
        if dice.random() < 0.2:
            found["m"] = {dice.choice("xy"): dice.randint(0, 9)}
        return found

    def group(depth: int) -> dict[str, Any] | None:
        if dice.random() < 0.15:
            return None
        sections: dict[str, Any] = {
            "vars": variables(),
            "hosts": {name: dice.choice([None, variables()]) for name in dice.sample(HOSTS, dice.randint(0, 3))},
        }
        if depth < 3:
            sections["children"] = {name: group(depth + 1) for name in dice.sample(GROUPS[:6], dice.randint(0, 2))}
        chosen = dice.sample(sorted(sections), dice.randint(0, len(sections)))
        return {name: sections[name] for name in chosen}

    folder.mkdir()
    data = {name: group(0) for name in dice.sample(GROUPS, dice.randint(1, 4))}
    (folder / "hosts.yml").write_text(yaml.safe_dump(data, sort_keys=False))
    for kind, names in (("group_vars", GROUPS), ("host_vars", ["h0", "h1", "h4"])):
        (folder / kind).mkdir()
        for name in dice.sample(names, 2):
            file = folder / kind / f"{name}{dice.choice(['', '.yml', '.yaml', '.json'])}"
            file.write_text(json.dumps(variables()))
    return folder / "hosts.yml"


def ours(inventory: AnsibleInventory) -> dict[str, Any]:
    return {
        "groups": {
            name: [group.hosts, group.children]
            for name, group in inventory.groups.items()
            if name not in ("all", "ungrouped")
        },
        "hosts": {
            host: {name: variable.value for name, variable in inventory.variables_of(host).items()}
            for host in inventory.hosts
        },
    }


def test_random_inventories_are_read_as_ansible_reads_them(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    paths = [made(dice, tmp_path / str(number)) for number in range(COUNT)]
    (tmp_path / "ansible.cfg").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps([str(path) for path in paths]),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")},
    )
    compared = 0
    for path, answer in zip(paths, done.stdout.splitlines(), strict=True):
        theirs = json.loads(answer)
        try:
            inventory = read_ansible_inventory(path)
        except InputError as refused:
            assert theirs is None or "ungrouped" in refused.what, (refused, path.read_text())
            continue
        assert ours(inventory) == theirs, path.read_text()
        compared += 1
    assert compared > COUNT / 3
