"""`lab up`: builds the requested lab, whatever was there before."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Network

from l40s_lab import files, loopback
from l40s_lab.engine.environment import STACKS
from l40s_lab.hardware import recording
from l40s_lab.hardware.machine import Gpu
from l40s_lab.hardware.pci import lay_out
from l40s_lab.life import addressing, down, inventory, keys, levels
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.home import LOG, SUPERVISORS, Home, held, home
from l40s_lab.life.levels import Level
from l40s_lab.life.machines import RECORDED, machine_of
from l40s_lab.life.request import Request
from l40s_lab.life.status import answering
from l40s_lab.life.wanted import Say, Wanted, resolve
from l40s_lab.namespaces.layers import MEMORY
from l40s_lab.node import host_gpus
from l40s_lab.nvml import library
from orchestrator.doctor.steps.recordings import SUFFIX, file_name, save_snapshots
from orchestrator.protocol.errors import NodeError

READY_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Raised:
    """A running lab. fresh: it was built now; else it already existed."""

    home: Home
    blueprint: Blueprint
    level: Level
    fresh: bool


def up(request: Request, say: Say) -> Raised:
    """Make sure the lab runs; asking for the same shape again only takes a check. Raises DeployError."""
    wanted = resolve(request, say)
    if not wanted.devices:
        library.build()
    fingerprint = wanted.fingerprint()
    with held():
        place = home(request.name)
        found = place.blueprint()
        if found and found.fingerprint == fingerprint and _is_whole(place, found):
            return Raised(place, found, wanted.level, fresh=False)
        if place.path.exists() or place.strays():
            say(
                f"replacing the lab {request.name!r}: "
                + ("it has other settings" if found else "it is left over from an earlier run")
            )
            down.remove(place)
        blueprint = _blueprint(wanted, place, fingerprint)
        _build(place, blueprint, wanted, say)
        return Raised(place, blueprint, wanted.level, fresh=True)


def _is_whole(place: Home, found: Blueprint) -> bool:
    supervisor = place.supervisor()
    if not supervisor or not supervisor.alive or not place.inventory.exists():
        return False
    return all(answering(found).values())


def _blueprint(wanted: Wanted, place: Home, fingerprint: str) -> Blueprint:
    cluster, level = wanted.cluster, wanted.level.number
    cabling = recording.networks(wanted.snapshots.values())
    if level == 0:
        prefix, port = loopback.choose_addresses(str(place.path), len(cluster.nodes))
    else:
        used = [*addressing.used_networks(), *(IPv4Network(recorded) for recorded in cabling)]
        network = addressing.choose_network(str(place.path), used)
        prefix, port = str(network.network_address).rpartition(".")[0], 22
    return Blueprint(
        name=place.name,
        directory=str(place.path),
        level=level,
        prefix=prefix,
        nodes=cluster.nodes,
        gangs=cluster.gangs,
        engine=wanted.engine,
        deaths=wanted.request.deaths,
        ranks=wanted.request.ranks,
        wiring_name=wanted.wiring_name,
        wiring=dict(wanted.document),
        fingerprint=fingerprint,
        host_link="" if level == 0 else f"l40s-{place.mark}",
        port=port,
        shows=wanted.shows,
        rootfs=wanted.rootfs,
        variables=cluster.variables,
        recorded=tuple(f"{file_name(wanted.recorded[node])}{SUFFIX}" for node in cluster.nodes if wanted.recorded),
        cabling=cabling,
        mark=place.mark,
        devices=tuple(wanted.devices[node] for node in cluster.nodes if wanted.devices),
    )


def _build(place: Home, blueprint: Blueprint, wanted: Wanted, say: Say) -> None:
    place.path.mkdir(mode=0o700)
    try:
        (place.path / MEMORY).mkdir()
        if wanted.snapshots:
            save_snapshots(wanted.snapshots, place.path / RECORDED)
        if blueprint.level:
            machines = [machine_of(blueprint, index) for index in range(len(blueprint.nodes))]
            addressing.make_room(sum(len(machine.interfaces) for machine in machines) * len(machines), say)
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
        _let_it_live(place, supervisor, stays=blueprint.level == 0)
        _write_inventory(place, blueprint, wanted.stack)
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
        said = "did not report in time" if not readable else "ended"
        raise NodeError(
            f"the lab's supervisor {said}: {place.log_tail() or 'its log is empty'}",
            where=f"lab {place.name}",
            fix="try --level 0, which needs no namespaces",
        )


def _expect_answers(place: Home, blueprint: Blueprint) -> None:
    end = time.monotonic() + READY_DEADLINE_S
    while not all((answers := answering(blueprint)).values()):
        if time.monotonic() > end:
            silent = ", ".join(name for name, answer in answers.items() if not answer)
            raise NodeError(
                f"the SSH server does not answer on {silent}: {place.log_tail()}",
                where=f"lab {place.name}",
                fix="check /var/log/sshd.log in the node",
            )
        time.sleep(0.01)


def _let_it_live(place: Home, supervisor: subprocess.Popen[bytes], *, stays: bool) -> None:
    """From here on the lab outlives us. stays: the process that we started is part of the lab (level 0); at other
    levels it ends once the process that it has started runs alone."""
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"detach\n")
    supervisor.stdin.close()
    assert supervisor.stdout is not None
    with supervisor.stdout as says:
        alone = os.read(says.fileno(), 64) == b"alone\n"
    if alone:
        if stays:
            supervisor.returncode = 0  # Popen warns about a process that is still running
        else:
            supervisor.wait(READY_DEADLINE_S)
        return
    raise NodeError(f"the lab ended: {place.log_tail()}", where=f"lab {place.name}", fix="l40s-deploy lab up")


def _write_inventory(place: Home, blueprint: Blueprint, stack: str) -> None:
    import yaml

    gpus = {node: gpu_count(blueprint, index) for index, node in enumerate(blueprint.nodes)}
    accept = ("LIMITS",) if levels.limits_are_short() else ()
    text = "# Written by `l40s-deploy lab up`; `lab down` deletes it.\n"
    text += yaml.safe_dump(inventory.document(blueprint, gpus, stack, accept), sort_keys=False, width=200)
    files.put(place.inventory, text)


def gpu_count(blueprint: Blueprint, index: int) -> int:
    """GPUs that a node's engine may use."""
    if blueprint.devices:
        return host_gpus.gpu_count(blueprint.devices[index])
    if blueprint.engine in STACKS:
        return blueprint.ranks
    node = machine_of(blueprint, index)
    if node.recording is not None:
        return max(1, node.recording.gpus)
    return sum(isinstance(function.card, Gpu) for function in lay_out(node.machine).functions)
