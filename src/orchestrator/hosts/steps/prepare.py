"""`prepare`: set hosts up for `up`, and undo it. Ansible does it; this decides what to run on which host."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.gang.steps.operation import connected
from orchestrator.hosts.steps.bundle import StackBundle, copy_part, read_bundle, refuse_without, stack_in
from orchestrator.hosts.steps.runner import HostEvent, HostResult, count_tasks, run_playbook
from orchestrator.hosts.steps.stack import ROUTER_STACK
from orchestrator.loading.profiles import load_stack, stack_lock
from orchestrator.model.chosen import all_machines, no_such
from orchestrator.model.deadlines import PREPARE_S
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Stack
from orchestrator.model.topology import Topology
from orchestrator.planning.choices import tcp_choices
from orchestrator.planning.host import venv
from orchestrator.planning.ports import firewall
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.topology.build import build

TAGS = ("system_packages", "engine_user", "viewers", "limits", "sudo_rule", "kernel", "engine_env", "router_env")
"""What can be chosen by --tags: the roles of playbooks/prepare.yml, in its order."""

ON_REQUEST = ("firewall",)
"""Roles that run only where --tags names them."""

ENGINE_USER = "l40s"
"""The engine's user if the inventory names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """What an operator asks for. () means all, None the inventory's.

    install_containers: install the distribution's own Docker or podman where the stack wants it and there is none
    become:          over the inventory: use sudo
    become_password: what sudo wants to hear
    find_links:      one more place where pip on the nodes looks
    """

    nodes: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    check: bool = False
    remove: bool = False
    stack: str | None = None
    bundle: Path | None = None
    router_bundle: Path | None = None
    install_containers: bool = False
    become: bool = False
    become_password: str | None = None
    find_links: str = ""
    timeout_s: float = PREPARE_S

    @property
    def playbook(self) -> str:
        """Its file."""
        return "remove.yml" if self.remove else "prepare.yml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareResult:
    """What came of it. nodes: the names that were asked for, in the inventory's order."""

    nodes: tuple[str, ...]
    results: PerNode[HostResult]
    seconds: float


def tasks_of(inventory: Inventory, request: PrepareRequest) -> dict[str, int]:
    """How many tasks each chosen node's run has; empty where Ansible can't tell. Slow: ask beside the run."""
    if not (plays := count_tasks(request.playbook, inventory=Path(inventory.path), tags=request.tags)):
        return {}
    names = _chosen(inventory, request.nodes)
    if len(plays) == 1:
        return dict.fromkeys(names, plays[0])
    gangs, router = {node.name for node in inventory.nodes}, _router(inventory, names)
    counts = {name: plays[0] if name in gangs else 0 for name in names}
    if router is not None:
        counts[router.node.name] += plays[1]
    return counts


def prepare(
    inventory: Inventory, request: PrepareRequest, on_step: Callable[[HostEvent], None] = lambda _: None
) -> PrepareResult:
    """Run prepare.yml, or remove.yml, on the chosen nodes; a node's failure is a value beside the others' results.

    Raises InputError for what can't be done anywhere (unknown node, tag or stack, a bundle of another stack), and
    NodeError where a stack is to be removed below a running engine.
    """
    began = time.monotonic()
    names = _chosen(inventory, request.nodes)
    nodes = tuple(node for node in inventory.nodes if node.name in names)
    _refuse_tags(request)
    with tempfile.TemporaryDirectory(prefix="l40s-prepare-") as folder:
        if request.remove:
            _refuse_below_an_engine(inventory, names)
        variables = play_variables(nodes, request, Path(folder), router=_router(inventory, names))
        for name, rules in _firewalls(inventory, nodes, request).items():
            variables["prepare_hosts"][name]["firewall"] = rules
        results = run_playbook(
            request.playbook,
            inventory=Path(inventory.path),
            variables=variables,
            only=names,
            tags=request.tags,
            check=request.check,
            forks=len(names),
            become_password=request.become_password,
            deadline_s=request.timeout_s,
            on_step=on_step,
        )
    return PrepareResult(nodes=names, results=results, seconds=time.monotonic() - began)


def play_variables(
    nodes: Sequence[NodeSpec], request: PrepareRequest, folder: Path, *, router: RouterSpec | None = None
) -> dict[str, Any]:
    """What the playbook is given. folder: where files that it reads on this machine may be put. router: where it
    gets its virtual environment, from the router's bundle, or from an index where no bundle is given at all."""
    if request.remove:
        hosts = (*nodes, *([router.node] if router is not None else []))
        states = {node.name: node.state_dir for node in hosts if node.state_dir}
        return {"take_back_states": states, **_become(request)}
    bundle = read_bundle(request.bundle) if request.bundle else None
    parts = _unpacked(bundle, folder) if bundle else {}
    variables = {
        "prepare_hosts": {node.name: _host(node, request, bundle, parts) for node in nodes},
        **_become(request),
    }
    return variables | _router_variables(router, nodes, request, folder) if router is not None else variables


def _router_variables(
    router: RouterSpec, nodes: Sequence[NodeSpec], request: PrepareRequest, folder: Path
) -> dict[str, Any]:
    variables = dict[str, Any]()
    if request.router_bundle or not request.bundle:
        variables["prepare_router"] = _router_environment(router, request, folder)
    if all(_machine(router.node) != _machine(node) for node in nodes):
        variables["prepare_router_viewers"] = {"up_becomes": _up_becomes(router.node), **_viewers(router.node)}
    return variables


def _router_environment(router: RouterSpec, request: PrepareRequest, folder: Path) -> dict[str, str]:
    if not request.router_bundle:
        return {"venv": router.venv, "find_links": request.find_links}
    its_own = read_bundle(request.router_bundle)
    lock = folder / "router-requirements.txt"
    lock.write_text(its_own.lock)
    given = {"bundle": str(its_own.path.absolute()), "lock": str(lock), "python": its_own.python}
    return {"venv": router.venv, "find_links": "", **given}


def _machine(node: NodeSpec) -> tuple[str, int | None]:
    """What tells whether two entries of the inventory are one machine, which has one group of viewers."""
    return node.reach.host, node.reach.port


def _up_becomes(node: NodeSpec) -> str:
    """Whom `up` becomes there; '' for nobody."""
    return node.reach.become_user if node.reach.become else ""


def _viewers(node: NodeSpec) -> dict[str, Any]:
    return {
        "state_dir": node.state_dir or "",
        "viewers": list(node.viewers),
        "viewers_logs": node.viewers_logs,
    }


def _unpacked(bundle: StackBundle, folder: Path) -> dict[str, str]:
    """A bundle's lock and those of its parts that a node gets as files, by their names."""
    parts = {"lock": str(folder / "requirements.txt")}
    (folder / "requirements.txt").write_text(bundle.lock)
    for part, there in (("debs", bundle.debian), ("vocabularies", bundle.vocabularies), ("image", bundle.image)):
        if there:
            parts[part] = str(folder / f"{part}.tar")
            copy_part(bundle, part, folder / f"{part}.tar")
    return parts


def _topologies(inventory: Inventory, gangs: Sequence[GangSpec]) -> dict[str, Topology]:
    with connected(inventory) as operation:
        looked = look(operation.fleet, [node for gang in gangs for node in gang.nodes]).all()
    return {name: build(snapshot) for name, snapshot in looked.items()}


def _firewalls(inventory: Inventory, nodes: Sequence[NodeSpec], request: PrepareRequest) -> dict[str, str]:
    """Each node's rules, where they were asked for: they name the addresses of all nodes of its gang.

    Raises why a node can't be looked at, and InputError where a gang's nodes share no network.
    """
    if "firewall" not in request.tags:
        return {}
    wanted = {node.name for node in nodes}
    gangs = [all_machines(gang) for gang in inventory.gangs if any(node.name in wanted for node in gang.machines)]
    topologies = _topologies(inventory, gangs)
    firewalls: dict[str, str] = {}
    for gang in gangs:
        addresses = {name: choice.address for name, choice in tcp_choices(gang, topologies).items()}
        firewalls |= {node.name: firewall(gang, node, addresses) for node in gang.nodes if node.name in wanted}
    return firewalls


def sorted_bundles(files: Sequence[Path]) -> tuple[Path | None, Path | None]:
    """The stack's bundle and the router's, of those that were named. Raises InputError for two of a kind."""
    bundles: dict[bool, Path] = {}
    for file in files:
        is_router = stack_in(file) == ROUTER_STACK.name
        if is_router in bundles:
            kind = "the router's" if is_router else "a stack's"
            raise InputError(
                f"is {kind} packages, as {bundles[is_router]} is", where=str(file), fix="name one bundle of each kind"
            )
        bundles[is_router] = file
    return bundles.get(False), bundles.get(True)


def _chosen(inventory: Inventory, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the gangs' nodes and of the router's host, which may be one of them."""
    known = dict.fromkeys(node.name for node in inventory.nodes)
    if inventory.router is not None:
        known[inventory.router.node.name] = None
    for name in names:
        if name not in known:
            raise no_such("node", name, known, where="--node")
    return tuple(name for name in known if not names or name in names)


def _router(inventory: Inventory, names: Sequence[str]) -> RouterSpec | None:
    spec = inventory.router
    return spec if spec is not None and spec.node.name in names else None


def _refuse_tags(request: PrepareRequest) -> None:
    if request.remove and request.tags:
        raise InputError("--remove undoes everything", where="--tags", fix="omit --tags")
    for tag in request.tags:
        if tag not in (*TAGS, *ON_REQUEST):
            raise InputError(
                f"found {tag!r}, wanted one or more of {', '.join((*TAGS, *ON_REQUEST))}",
                where="--tags",
                fix="--tags limits",
            )


def _refuse_below_an_engine(inventory: Inventory, names: Sequence[str]) -> None:
    """A node that does not answer here will not answer Ansible either, which reports it."""
    with connected(inventory) as nodes:
        operation = nodes.as_standing()
        gangs = [gang for gang in operation.inventory.gangs if any(node.name in names for node in gang.nodes)]
        for view in operation.look(gangs):
            if alive := [node.name for node in view.nodes if node.alive and node.name in names]:
                raise NodeError(
                    f"gang {view.name} is running there on the stack that would be removed",
                    where=", ".join(alive),
                    fix=f"l40s-deploy down {view.name}",
                )
        router = operation.router
        if router is not None and router.spec.node.name in names and router.view().running:
            raise NodeError(
                "the router is running there", where=router.spec.node.name, fix="stop it with `l40s-deploy router down`"
            )


def _host(
    node: NodeSpec, request: PrepareRequest, bundle: StackBundle | None, parts: Mapping[str, str]
) -> dict[str, Any]:
    """What prepare.yml wants to know of a node, beside its Ansible variables: the packages of a virtual environment, or
    an image; what the one wants is '' for the other."""
    stack, lock = _stack_and_lock(node, request, bundle, parts)
    up_becomes = _up_becomes(node)
    return {
        "stack": stack.name,
        "install": stack.install,
        "gpus": stack.device == "cuda",
        "image": stack.image,
        "image_archive": parts.get("image", ""),
        "lock": lock,
        "bundle": str(bundle.path.absolute()) if bundle and lock else "",
        "vocabularies": parts.get("vocabularies", ""),
        "install_containers": request.install_containers,
        "python": bundle.python if bundle else stack.python,
        "packages": list(stack.system_packages),
        "debian": parts.get("debs", ""),
        "debian_release": bundle.debian if bundle else "",
        "find_links": request.find_links,
        "venv": venv(node, stack.name),
        "engine_user": node.engine_user or (up_becomes if up_becomes != "root" else "") or ENGINE_USER,
        "up_becomes": up_becomes,
        "model_root": node.model_root,
        **_viewers(node),
        "firewall": "",
    }


def _stack_and_lock(
    node: NodeSpec, request: PrepareRequest, bundle: StackBundle | None, parts: Mapping[str, str]
) -> tuple[Stack, str]:
    """What a node gets; the lock is '' for a stack in a container."""
    name = request.stack or node.stack or (bundle.stack if bundle else None)
    if name is None:
        fix = "use --stack NAME, or set l40s_stack in the inventory"
        raise InputError("no stack is set for it", where=node.name, fix=fix)
    stack = load_stack(name)
    if bundle:
        _refuse_another(bundle, stack, node.name)
    if stack.install != "venv":
        return stack, ""
    if bundle is None:
        refuse_without(stack)
    return stack, parts.get("lock") or str(stack_lock(name))


def _refuse_another(bundle: StackBundle, stack: Stack, node: str) -> None:
    """Another stack's; packages for a stack in a container, or an image for one in a virtual environment: nothing would
    be installed."""
    build = f"with `l40s-deploy stack build {stack.name} --out {stack.name}.tar`"
    if bundle.stack != stack.name:
        what, fix = f"the stack {bundle.stack}, but {node} needs {stack.name}", f"build one {build}"
    elif bundle.image != (stack.install != "venv"):
        holds = "a container image" if bundle.image else "packages"
        what = f"{holds}, but the file of the stack {stack.name} has `install: {stack.install}`"
        fix = f"use the stack file that the bundle was built from with --stack, or build it again {build}"
    else:
        return
    raise InputError(f"contains {what}", where=str(bundle.path), fix=fix)


def _become(request: PrepareRequest) -> dict[str, Any]:
    """prepare needs root, also where the inventory lets all else run as another user."""
    asked = request.become or request.become_password is not None
    return {"ansible_become_user": "root", **({"ansible_become": True} if asked else {})}
