"""A request in detail for this machine, before anything is built: nodes, their machines, the level."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from l40s_lab.hardware import recording, wiring
from l40s_lab.life import cluster as clusters
from l40s_lab.life import levels
from l40s_lab.life.blueprint import Show
from l40s_lab.life.cluster import Cluster
from l40s_lab.life.levels import Level
from l40s_lab.life.request import Request
from l40s_lab.node import bare, host_gpus, rootfs
from orchestrator.doctor.steps.recordings import load_saved
from orchestrator.engines.registry import newest
from orchestrator.loading.profiles import load_stack, stack_file
from orchestrator.loading.resources import data_dir
from orchestrator.model.snapshot import Snapshot, snapshot_json
from orchestrator.protocol.errors import InputError, NodeError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One lab in all detail.

    wiring_name: as shown to users; document: the machines' description, {} for recorded ones
    rootfs:      directory that the nodes' roots are made from
    stack:       of nodes without their own; shows: directories of the engine that they show
    snapshots:   by node name in the snapshots; recorded: node -> the snapshot that it looks like
    devices:     node -> the device files of this machine's own GPUs that it gets, {} if GPUs are emulated
    """

    request: Request
    cluster: Cluster
    wiring_name: str
    document: Mapping[str, Any]
    level: Level
    rootfs: str
    stack: str
    shows: tuple[Show, ...]
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """As shown by `lab status`."""
        return (
            self.request.engine
            if self.request.gpus == "emulated"
            else self.stack.rpartition("/")[2].removesuffix(".yml")
        )

    def fingerprint(self) -> str:
        """Changes with the request and with the lab's own code."""
        code = sorted(
            (str(path), path.stat().st_mtime_ns, path.stat().st_size)
            for path in Path(__file__).parents[1].rglob("*")
            if path.suffix in (".py", ".c", ".yml")
        )
        parts = [
            asdict(replace(self.request, level=self.level.number)),
            asdict(self.cluster),
            self.document,
            self.rootfs,
            [asdict(show) for show in self.shows],
            {name: snapshot_json(snapshot) for name, snapshot in self.snapshots.items()},
            self.recorded,
            self.devices,
            code,
            sys.executable,
        ]
        return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def resolve(request: Request, say: Say) -> Wanted:
    """Look up everything that the request names. Raises DeployError."""
    request.check()
    if request.gpus == "host":
        return _of_host(request, say)
    snapshots = load_saved(Path(request.recorded)) if request.recorded is not None else {}
    document = {} if snapshots else wiring.load(request.wiring)
    cluster = _cluster(request, document, snapshots, say)
    recorded = _recorded(request, cluster, snapshots)
    level, root = _level(request, len(cluster.nodes), say)
    shows, stack = _engine(request, root, say)
    return Wanted(
        request=request,
        cluster=cluster if request.engine == "standin" else cluster.without("l40s_stack"),
        wiring_name=f"recorded in {request.recorded}" if snapshots else request.wiring,
        document=document if snapshots else _shaped(document, cluster),
        level=level,
        rootfs=root,
        stack=stack,
        shows=shows,
        snapshots=snapshots,
        recorded=recorded,
    )


def _of_host(request: Request, say: Say) -> Wanted:
    """Nodes that share the real GPUs of this machine: by default one per GPU."""
    found = host_gpus.find()
    nodes = len(found.gpus) if request.nodes is None else request.nodes
    cluster = _cluster(replace(request, nodes=None if request.like else nodes), {}, {}, say)
    devices = host_gpus.share(found, cluster.nodes, [cluster.gpus.get(node) for node in cluster.nodes])
    shows, stack = _real_engine(str(request.stack))
    return Wanted(
        request=request,
        cluster=cluster.without("l40s_stack"),
        wiring_name=f"{len(found.gpus)} GPUs of this machine",
        document=host_gpus.NETWORK,
        level=levels.choose(1, len(cluster.nodes)),
        rootfs="/",
        stack=stack,
        shows=shows,
        devices=devices,
    )


def _real_engine(word: str) -> tuple[tuple[Show, ...], str]:
    """The directories to show for a stack installed on this machine, and its name for the inventory."""
    stack, file = load_stack(word), stack_file(word)
    environment = Path(host_gpus.VENVS) / stack.name
    if stack.device != "cuda":
        raise InputError(f"the stack {stack.name} is for {stack.device}", where="--stack", fix="specify one for cuda")
    if not (environment / "bin/python3").exists():
        raise NodeError(
            f"the engine's environment is missing: no {environment}/bin/python3",
            where="this machine",
            fix=f"install the stack {stack.name} there, or link its virtual environment to {environment}",
        )
    own = file.is_relative_to(data_dir("inventory"))
    shown = [str(environment), *([host_gpus.MODELS] if Path(host_gpus.MODELS).is_dir() else [])]
    return tuple(Show(outside=place, inside=place) for place in shown), stack.name if own else str(file)


def _cluster(request: Request, document: dict[str, Any], snapshots: Mapping[str, Snapshot], say: Say) -> Cluster:
    if request.like is not None:
        found = clusters.like(request.like, same_hardware=bool(snapshots))
        if found.left_out:
            say(f"ignored, because it is specific to the machines: {', '.join(found.left_out)}")
        if found.router:
            say(
                f"left out: the router on {found.router}; a group `router` of the lab's inventory can have a node of it"
            )
        return found
    gangs = 1 if request.gangs is None else request.gangs
    if snapshots and request.nodes is None:
        for name in snapshots:
            clusters.check_node_name(name, str(request.recorded))
        return clusters.equal_gangs(snapshots, gangs)
    nodes = wiring.nodes_per_gang(document, request.wiring) * gangs if request.nodes is None else request.nodes
    return clusters.equal_gangs((f"node{index}" for index in range(nodes)), gangs)


def _recorded(request: Request, cluster: Cluster, snapshots: Mapping[str, Snapshot]) -> dict[str, str]:
    """By name if an inventory gives names, else in order."""
    if not snapshots:
        return {}
    for snapshot in snapshots.values():
        recording.primary_interface(snapshot)
    if request.like is None:
        names = list(snapshots)
        return {node: names[index % len(names)] for index, node in enumerate(cluster.nodes)}
    missing = [node for node in cluster.nodes if node not in snapshots]
    if missing:
        raise InputError(
            f"there is no snapshot of {', '.join(missing)}, only of {', '.join(snapshots)}",
            where=str(request.recorded),
            fix=f"record it with `l40s-deploy discover --inventory {request.like} --save {request.recorded}`",
        )
    return {node: node for node in cluster.nodes}


def _shaped(document: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The wiring, with the number of GPUs per node that the cluster has."""
    if not cluster.gpus:
        return document
    changes = document.get("nodes") or [{}]
    nodes = [
        {**changes[index % len(changes)], "keep_gpus": cluster.gpus[node]} for index, node in enumerate(cluster.nodes)
    ]
    shaped = {**document, "nodes": nodes}
    for index, node in enumerate(cluster.nodes):
        wiring.parse(shaped, f"--wiring, for {node}", index)
    return shaped


def _level(request: Request, nodes: int, say: Say) -> tuple[Level, str]:
    """The level, and the directory that the nodes' roots are made from."""
    bare = request.engine == "none"
    level = levels.choose(2 if bare else request.level, nodes)
    if level.number == 2:
        try:
            return level, str(rootfs.ensure(say))
        except NodeError as failure:
            level = levels.without_systemd(failure.what)
    if bare:
        raise NodeError(level.reason, where="--engine none", fix="correct that, or remove --engine")
    return level, "/"


def _engine(request: Request, root: str, say: Say) -> tuple[tuple[Show, ...], str]:
    """The directories of the engine that the nodes show, and the name of its stack."""
    if request.engine == "standin":
        return (), newest().stack
    if request.engine == "none":
        return (Show(outside=str(bare.ensure_debs(root, say)), inside=bare.DEBS),), str(bare.STACK)
    from l40s_lab.engine import environment as engine
    from l40s_lab.engine.model import QWEN, TINY, WIDE

    stack = engine.STACKS[request.engine]
    environment = Show(outside=str(engine.ensure_engine(say, stack)), inside=f"/opt/l40s/venvs/{stack}")
    models = (QWEN,) if request.engine == "vllm" else (TINY, *((WIDE,) if request.ranks > 1 else ()))
    shows = (Show(outside=str(engine.ensure_model(one)), inside=f"/workspace/{one.name}") for one in models)
    return (environment, *shows), stack
