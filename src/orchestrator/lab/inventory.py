"""The inventory that a lab writes: an ordinary one, through which the product drives it like any cluster."""

from __future__ import annotations

import getpass
from typing import Any

from orchestrator.lab.blueprint import Blueprint
from orchestrator.lab.rootfs import USER

HTTP_PORT = 8000


def document(blueprint: Blueprint, gpus: int, stack: str, accept: tuple[str, ...] = ()) -> dict[str, Any]:
    """The inventory as data.

    gpus: of each node; stack: the engine's; accept: findings that are this machine's and not the lab's
    """
    variables: dict[str, Any] = {
        "ansible_user": "root",
        "ansible_port": blueprint.port,
        "ansible_ssh_private_key_file": f"{blueprint.directory}/client",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={blueprint.directory}/known_hosts",
        "ansible_python_interpreter": "/usr/bin/python3",
        "l40s_gpus": gpus,
        "l40s_model_root": "/workspace",
        "l40s_stack": stack,
        "l40s_http_port": HTTP_PORT,
    }
    if blueprint.level == 2:
        variables |= {"ansible_user": USER, "ansible_become": True}
    if accept:
        variables["l40s_accept"] = list(accept)
    if blueprint.level == 0:
        variables |= {
            "ansible_user": getpass.getuser(),
            "l40s_model_root": f"{blueprint.directory}/workspace",
            "l40s_socket_ifname": "lo",
        }
    return {"all": {"vars": variables, "children": {"gangs": {"children": _gangs(blueprint, stack)}}}}


def _gangs(blueprint: Blueprint, stack: str) -> dict[str, Any]:
    size = len(blueprint.nodes) // blueprint.gangs
    gangs: dict[str, Any] = {}
    for gang in range(blueprint.gangs):
        members = range(gang * size, (gang + 1) * size)
        gangs[f"gang{gang}"] = {"hosts": {blueprint.nodes[index]: _host(blueprint, index, stack) for index in members}}
    return gangs


def _host(blueprint: Blueprint, index: int, stack: str) -> dict[str, Any]:
    address = blueprint.address(index)
    if blueprint.level > 0:
        return {"ansible_host": address}
    folder = f"{blueprint.directory}/nodes/{blueprint.nodes[index]}"
    return {
        "ansible_host": address,
        "l40s_address": address,
        "l40s_http_host": address,
        "l40s_fs_root": f"{folder}/root",
        "l40s_state_dir": f"{folder}/state",
        "l40s_venv": f"{folder}/venvs/{stack}",
    }
