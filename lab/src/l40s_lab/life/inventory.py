"""The inventory that a lab writes: an ordinary one, so that the product treats the lab like any cluster."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from l40s_lab.life.blueprint import Blueprint
from l40s_lab.node.rootfs import USER

HTTP_PORT = 8000


def document(blueprint: Blueprint, gpus: Mapping[str, int], stack: str, accept: tuple[str, ...] = ()) -> dict[str, Any]:
    """The inventory as data.

    gpus: node -> number of GPUs; stack: the engine's, for nodes without their own
    accept: findings about this machine, not about the lab
    """
    variables: dict[str, Any] = {
        "ansible_user": "root",
        "ansible_port": blueprint.port,
        "ansible_ssh_private_key_file": f"{blueprint.directory}/client",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={blueprint.directory}/known_hosts",
        "ansible_python_interpreter": "/usr/bin/python3",
        "l40s_model_root": "/workspace",
        "l40s_stack": stack,
        "l40s_http_port": HTTP_PORT,
    }
    if blueprint.level == 2:
        variables |= {"ansible_user": USER, "ansible_become": True}
    if blueprint.level == 0:
        variables |= {"ansible_user": getpass.getuser(), "l40s_model_root": f"{blueprint.directory}/workspace"}
    wanted = {node: _wanted(blueprint.variables.get(node, {}), gpus[node], accept) for node in blueprint.nodes}
    shared = _shared(list(wanted.values()))
    hosts = {
        node: {**_without(wanted[node], shared), **_own(blueprint, index, stack)}
        for index, node in enumerate(blueprint.nodes)
    }
    gangs = {gang: {"hosts": {node: hosts[node] for node in nodes}} for gang, nodes in blueprint.gangs.items()}
    return {"all": {"vars": variables | shared, "children": {"gangs": {"children": gangs}}}}


def _wanted(asked: Mapping[str, Any], gpus: int, accept: tuple[str, ...]) -> dict[str, Any]:
    own = asked.get("l40s_accept", [])
    accepted = [*([own] if isinstance(own, str) else own), *accept]
    return {**asked, "l40s_gpus": gpus, **({"l40s_accept": accepted} if accepted else {})}


def _shared(hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """Variables that are the same on all hosts, to be written once."""
    return {name: value for name, value in hosts[0].items() if all(host.get(name) == value for host in hosts)}


def _without(host: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in host.items() if name not in shared}


def _own(blueprint: Blueprint, index: int, stack: str) -> dict[str, Any]:
    address = blueprint.address(index)
    if blueprint.level > 0:
        return {"ansible_host": address}
    stack = str(blueprint.variables.get(blueprint.nodes[index], {}).get("l40s_stack", stack))
    folder = f"{blueprint.directory}/nodes/{blueprint.nodes[index]}"
    return {
        "ansible_host": address,
        "l40s_address": address,
        "l40s_http_host": address,
        "l40s_socket_ifname": "lo",
        "l40s_fs_root": f"{folder}/root",
        "l40s_state_dir": f"{folder}/state",
        "l40s_venv": f"{folder}/venvs/{stack}",
    }
