"""`lab up`: a lab as it was asked for, whatever was there before."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.lab import addressing, down, files, inventory, keys, levels, loopback, rootfs
from orchestrator.lab import cluster as clusters
from orchestrator.lab.blueprint import Blueprint, Show
from orchestrator.lab.cluster import Cluster
from orchestrator.lab.hardware import wiring
from orchestrator.lab.hardware.machine import Gpu
from orchestrator.lab.hardware.pci import lay_out
from orchestrator.lab.home import LOG, SUPERVISORS, Home, held, home
from orchestrator.lab.levels import Level
from orchestrator.lab.namespaces.layers import MEMORY
from orchestrator.lab.nvml import library
from orchestrator.lab.request import Request
from orchestrator.lab.status import answering
from orchestrator.model.errors import NodeError

Say = Callable[[str], None]
READY_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Raised:
    """A running lab. fresh: it was built now; else it was there already."""

    home: Home
    blueprint: Blueprint
    level: Level
    fresh: bool


def up(request: Request, say: Say) -> Raised:
    """Have the lab running; the same shape again is a quick look. Raises DeployError."""
    request.check()
    document = wiring.load(request.wiring)
    cluster = _cluster(request, document, say)
    document = _shaped(document, cluster)
    level, root = _level(request, len(cluster.nodes), say)
    shows, stack = _engine(request, say)
    library.build()
    fingerprint = _fingerprint(request, document, cluster, level, shows, root)
    with held():
        place = home(request.name)
        found = place.blueprint()
        if found and found.fingerprint == fingerprint and _is_whole(place, found):
            return Raised(place, found, level, fresh=False)
        if place.path.exists() or place.strays():
            say(f"replacing the lab {request.name!r}: " + ("it is another one" if found else "it is a leftover"))
            down.remove(place)
        blueprint = _blueprint(request, document, cluster, level, shows, root, fingerprint)
        _build(place, blueprint, stack)
        return Raised(place, blueprint, level, fresh=True)


def _cluster(request: Request, document: dict[str, Any], say: Say) -> Cluster:
    if request.like is not None:
        found = clusters.like(request.like, same_hardware=False)
        if found.left_out:
            say(f"left out, since it is of the machines themselves: {', '.join(found.left_out)}")
        return found if request.engine == "standin" else found.without("l40s_stack")
    gangs = 1 if request.gangs is None else request.gangs
    each = wiring.nodes_per_gang(document, request.wiring)
    nodes = each * gangs if request.nodes is None else request.nodes
    return clusters.equal_gangs((f"node{index}" for index in range(nodes)), gangs)


def _shaped(document: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The wiring with as many GPUs in each node as the cluster has there."""
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
    """The level, and the directory that its nodes' roots are made of."""
    level = levels.choose(request.level, nodes)
    if level.number < 2:
        return level, "/"
    try:
        return level, str(rootfs.ensure(say))
    except NodeError as failure:
        return levels.without_systemd(failure.what), "/"


def _engine(request: Request, say: Say) -> tuple[tuple[Show, ...], str]:
    """What the nodes show of the engine, and the name of its stack."""
    if request.engine == "standin":
        return (), "sglang-0.5.23"
    from orchestrator.lab import engine

    shows = (
        Show(outside=str(engine.ensure_engine(say)), inside=f"/opt/l40s/venvs/{engine.ENGINE_STACK}"),
        Show(outside=str(engine.ensure_model()), inside="/workspace/tiny-deepseek-v3"),
    )
    return shows, engine.ENGINE_STACK


def _fingerprint(
    request: Request, document: object, cluster: Cluster, level: Level, shows: tuple[Show, ...], root: str
) -> str:
    """Changes with the request and with the lab's own code."""
    code = sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size)
        for path in Path(__file__).parent.rglob("*")
        if path.suffix in (".py", ".c", ".yml")
    )
    parts = [
        asdict(replace(request, level=level.number)),
        document,
        asdict(cluster),
        [asdict(show) for show in shows],
        root,
        code,
        sys.executable,
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _is_whole(place: Home, found: Blueprint) -> bool:
    supervisor = place.supervisor()
    if not supervisor or not supervisor.alive or not place.inventory.exists():
        return False
    return all(answering(found).values())


def _blueprint(
    request: Request,
    document: dict[str, Any],
    cluster: Cluster,
    level: Level,
    shows: tuple[Show, ...],
    root: str,
    fingerprint: str,
) -> Blueprint:
    place = home(request.name)
    if level.number == 0:
        prefix, port = loopback.choose_addresses(str(place.path), len(cluster.nodes))
    else:
        network = addressing.choose_network(str(place.path), addressing.used_networks())
        prefix, port = str(network.network_address).rpartition(".")[0], 22
    return Blueprint(
        name=request.name,
        directory=str(place.path),
        level=level.number,
        prefix=prefix,
        nodes=cluster.nodes,
        gangs=cluster.gangs,
        engine=request.engine,
        wiring_name=request.wiring,
        wiring=document,
        fingerprint=fingerprint,
        host_link="" if level.number == 0 else f"l40s-{place.mark}",
        port=port,
        shows=shows,
        rootfs=root,
        variables=cluster.variables,
        mark=place.mark,
    )


def _build(place: Home, blueprint: Blueprint, stack: str) -> None:
    place.path.mkdir(mode=0o700)
    try:
        (place.path / MEMORY).mkdir()
        blueprint.write()
        keys.make(blueprint)
        supervisor = _start_supervisor(place, blueprint)
        try:
            _expect_ready(place, supervisor)
            _expect_answers(place, blueprint)
        except BaseException:
            supervisor.kill()
            supervisor.wait()
            raise
        _let_it_live(place, supervisor)
        _write_inventory(place, blueprint, stack)
    except BaseException:
        down.remove(place)
        raise


def _start_supervisor(place: Home, blueprint: Blueprint) -> subprocess.Popen[bytes]:
    with (place.path / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", SUPERVISORS[blueprint.level], str(place.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _expect_ready(place: Home, supervisor: subprocess.Popen[bytes]) -> None:
    assert supervisor.stdout is not None
    readable, _, _ = select.select([supervisor.stdout], [], [], READY_DEADLINE_S)
    line = os.read(supervisor.stdout.fileno(), 64) if readable else b""
    if line != b"ready\n":
        said = "said nothing in time" if not readable else "ended"
        raise NodeError(
            f"the lab's supervisor {said}: {place.log_tail() or 'no word in its log'}",
            where=f"lab {place.name}",
            fix="--level 0 needs no namespaces",
        )


def _expect_answers(place: Home, blueprint: Blueprint) -> None:
    end = time.monotonic() + READY_DEADLINE_S
    while not all((answers := answering(blueprint)).values()):
        if time.monotonic() > end:
            silent = ", ".join(name for name, answer in answers.items() if not answer)
            raise NodeError(
                f"no SSH server answers on {silent}: {place.log_tail()}",
                where=f"lab {place.name}",
                fix="see /var/log/sshd.log in the node",
            )
        time.sleep(0.01)


def _let_it_live(place: Home, supervisor: subprocess.Popen[bytes]) -> None:
    """From here on the lab outlives us."""
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"detach\n")
    supervisor.stdin.close()
    assert supervisor.stdout is not None
    if os.read(supervisor.stdout.fileno(), 64) == b"alone\n":
        return
    raise NodeError(f"the lab ended: {place.log_tail()}", where=f"lab {place.name}", fix="l40s-deploy lab up")


def _write_inventory(place: Home, blueprint: Blueprint, stack: str) -> None:
    import yaml

    gpus = {node: gpu_count(blueprint, index) for index, node in enumerate(blueprint.nodes)}
    accept = ("LIMITS",) if levels.limits_are_short() else ()
    text = "# Written by `l40s-deploy lab up`; it goes with `lab down`.\n"
    text += yaml.safe_dump(inventory.document(blueprint, gpus, stack, accept), sort_keys=False, width=200)
    files.put(place.inventory, text)


def gpu_count(blueprint: Blueprint, index: int) -> int:
    """GPUs that a node's engine shall use."""
    if blueprint.engine == "sglang":
        return 1
    layout = lay_out(wiring.parse(blueprint.wiring, blueprint.wiring_name, index))
    return sum(isinstance(function.card, Gpu) for function in layout.functions)
