"""Checks on a node before a run is armed. Each failed check is a DeployError."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import pwd
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.node import others, processes, supervision, viewers
from orchestrator.node.agent import weights
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine import engine_container, gpus, guardian
from orchestrator.node.network.listening import listeners
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.sizes import in_words
from orchestrator.protocol.staging import repair
from orchestrator.protocol.verbs import OtherAgent

SHM = "/dev/shm"  # noqa: S108 - only its size is read, nothing is written
SHM_BYTES = 512 << 20
"""For NCCL's shared memory transport and the engine's own queues between 8 ranks. A container's default is 64 MiB."""


@dataclass(frozen=True)
class OwnRun:
    """What the gang's own run holds here, and gives back before the next one starts.

    pids: its processes; ports, gpus: those that it was staged with, since not every holder can be seen
    """

    pids: frozenset[int] = frozenset()
    ports: frozenset[int] = frozenset()
    gpus: frozenset[int] = frozenset()

    def listens(self, address: str, port: int) -> bool:
        """Nobody else listens there."""
        holders = listeners(address, port)
        return holders <= self.pids if holders else port in self.ports

    def holds(self, index: int, pid: int) -> bool:
        """This process on that GPU is one of ours, or one that is ending, or in a PID namespace that hides it."""
        if pid in self.pids:
            return True
        process = processes.read(pid)
        return index in self.gpus and (process is None or process.gone)


NOTHING = OwnRun()


def check(run: Run, memory: gpus.GpuMemory, own: OwnRun = NOTHING, *, serves: bool = True) -> list[DeployError]:
    """All failures, in the order in which an operator would fix them; empty if the run may be armed.

    NVML is queried first and its answer read last: its process and driver start up while the other checks run.
    serves: an engine that loads a model; else another program runs in its place
    """
    if run.device == "cuda" and run.gpus:
        memory.ask(time.monotonic())
    engines = (_packages(run), _model(run), _working_dir(run)) if serves else ()
    steps = (_elsewhere(run), _python(run), _image(run), *engines, _ports(run, own), _gpus(run, memory, own))
    return [failure for step in steps for failure in step]


def _elsewhere(run: Run) -> Iterator[DeployError]:
    """Whoever has our node's name and our leader's port is this very part of the gang, started otherwise."""
    for other in others.other_agents(run.state):
        if not other.stranger and (other.node, other.port) == (run.node, run.leader.port):
            yield _ours(other, "runs-elsewhere", run.folder, run.state)


def _ours(other: OtherAgent, kind: str, where: str, state: str) -> DeployError:
    """What belongs to a gang is never advised to be killed."""
    user = viewers.user_name(os.geteuid())
    if other.stranger or os.path.realpath(other.state_dir) != os.path.realpath(state):
        return DeployError(other.what(state, user), where=where, fix=other.fix(user), kind=kind)
    fix = f"give each its own GPUs and ports in the inventory, or stop it with `l40s-deploy down {other.gang}`"
    return DeployError(f"in use by gang {other.gang}, which runs on this node too", where=where, fix=fix, kind=kind)


def _python(run: Run) -> Iterator[DeployError]:
    if run.venv_python and not _may(run, run.venv_python, os.X_OK):
        what = f"can't be executed by {_user(run)}" if pathlib.Path(run.venv_python).exists() else "does not exist"
        fix = f"install the stack {run.stack} with `l40s-deploy prepare`, or set l40s_venv to its virtual environment"
        yield DeployError(
            f"the engine's Python {what}", where=run.venv_python, fix=run.python_fix or fix, kind="no-stack"
        )


def _image(run: Run) -> Iterator[DeployError]:
    container = run.container
    lacks = engine_container.missing(container) if container is not None else None
    if container is None or lacks is None:
        return
    kind, words = lacks
    fix = {
        "program": f"run `l40s-deploy prepare --install-containers`, or install {container.program} yourself",
        "daemon": f"start it, and give the agent's user access: root, or the group {container.program}",
        "image": f"load the image of the stack {run.stack} with `l40s-deploy prepare`",
    }[kind]
    yield DeployError(words, where=container.image, fix=fix, kind="no-stack" if kind == "image" else "no-container")


def _packages(run: Run) -> Iterator[DeployError]:
    if not run.packages:
        return
    from orchestrator.node.look import environment  # and with it the probe's words: a sixteenth of an agent's start

    for name, installed in environment.differing(run.venv_python, run.packages).items():
        what = f"{name} {installed} is installed, but the stack {run.stack} has {run.packages[name]}"
        fix = f"install the stack {run.stack} with `l40s-deploy prepare`, or choose the installed stack with --stack"
        yield DeployError(what, where=run.venv_python, fix=fix, kind="wrong-stack")


def _model(run: Run) -> Iterator[DeployError]:
    if not run.model_path:
        return
    folder = pathlib.Path(run.model_path)
    config = folder / "config.json"
    copy = "copy the checkpoint to this node from one that has it, with `checkpoint push`, or correct l40s_model_root"
    if not folder.is_dir():
        yield DeployError(
            f"the model directory of {run.model} does not exist", where=str(folder), fix=copy, kind="no-model"
        )
        return
    if not config.is_file():
        yield DeployError(
            f"the model directory of {run.model} has no config.json", where=str(config), fix=copy, kind="no-model"
        )
        return
    if not _may(run, str(config), os.R_OK):
        what = f"config.json can't be read by {_user(run)}"
        yield DeployError(what, where=str(config), fix=f"run `chmod a+r {config}`", kind="no-model")
        return
    try:
        json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError) as wrong:
        yield DeployError(f"config.json can't be used: {wrong}", where=str(config), fix=copy, kind="no-model")
    good = next((name for name in run.members if name != run.node), "GOOD_NODE")
    yield from weights.check(folder, repair(folder, run.node, good))


def _working_dir(run: Run) -> Iterator[DeployError]:
    if not _may(run, run.working_dir, os.X_OK):
        what = f"the working directory can't be entered by {_user(run)}"
        yield DeployError(what, where=run.working_dir, fix="make it", kind="no-directory")


def _ports(run: Run, own: OwnRun) -> Iterator[DeployError]:
    for wanted in run.ports.check_free:
        failure = port_failure(wanted.address, wanted.port, run.state)
        if failure and not (failure.kind == "port-taken" and own.listens(wanted.address, wanted.port)):
            yield failure


UNSEEN_S = 1.0
"""A listener that nobody shows is looked at again for so long: it may be ending, or be another look like this one."""


def port_failure(address: str, port: int, state: str) -> DeployError | None:
    """None if we could listen there. state: the directory of who wants to."""
    until = time.monotonic() + UNSEEN_S
    while (error := _refusal(address, port)) is not None:
        taken = error.errno == errno.EADDRINUSE
        holder = min(listeners(address, port), default=0) if taken else 0
        if not taken or holder or time.monotonic() > until:
            return _port_taken(address, port, error, holder, state)
        time.sleep(0.05)
    return None


def _refusal(address: str, port: int) -> OSError | None:
    """Why nobody can listen there. SO_REUSEADDR ignores TIME_WAIT, but still finds every listener."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def _port_taken(address: str, port: int, error: OSError, holder: int, state: str) -> DeployError:
    where = f"port {port}" + (f" on {address}" if address else "")
    if error.errno == errno.EADDRNOTAVAIL:
        what = f"this node has no address {address}"
        return DeployError(what, where=where, fix="correct l40s_address in the inventory", kind="no-address")
    if error.errno != errno.EADDRINUSE:
        return DeployError(
            f"can't listen: {error.strerror}", where=where, fix="choose another port", kind="port-refused"
        )
    if holder and (agent := others.agent_above(holder)) is not None:
        return _ours(agent, "port-taken", where, state)
    by = f"pid {holder} ({supervision.title(holder)[:120]})" if holder else "a process that is not visible to the agent"
    hidden = not holder or others.hidden_above(holder)
    fix = "find out as root whose it is (`ss -ltnp`)" if hidden else "stop that process"
    return DeployError(
        f"in use by {by}", where=where, fix=f"{fix}, or choose another port in the inventory", kind="port-taken"
    )


def remarks(run: Run) -> list[str]:
    """Problems that may cause a failure later but don't prevent a start: limits that could not be raised far enough."""
    failures = []
    for name, least in run.limits.items():
        value = guardian.raise_limit(name, least)
        if value != -1 and (least == -1 or value < least):
            wanted = "unlimited" if least == -1 else str(least)
            failures.append(
                f"the limit {name} is {value} where the engine runs, wanted {wanted}: RDMA may fail to register"
                " memory; run `l40s-deploy prepare --tags limits`"
            )
    return failures + _shm(run)


def _shm(run: Run) -> list[str]:
    """As the engine sees it: a container or a unit may have another /dev/shm than an SSH session."""
    if run.device != "cuda" or len(run.gpus) < 2:
        return []
    try:
        room = os.statvfs(SHM)
    except OSError as error:
        return [f"{SHM} can't be used ({error.strerror}): NCCL needs it between the GPUs of a node"]
    free = room.f_bavail * room.f_frsize
    if free >= SHM_BYTES:
        return []
    words = f"{SHM} has only {free >> 20} MiB free where the engine runs"
    return [f"{words}: NCCL may fail to start between the GPUs of a node"]


def _gpus(run: Run, memory: gpus.GpuMemory, own: OwnRun) -> Iterator[DeployError]:
    if run.device != "cuda" or not run.gpus:
        return
    answered = memory.wait(gpus.FIRST_ANSWER_S)
    if elsewhere := list(_elsewhere_now(run, memory.uuids)):
        yield from elsewhere
    elif not answered or memory.answer is None:
        what = f"GPU memory can't be read: {memory.error or 'NVML does not answer'}"
        yield DeployError(
            what, where="NVML", fix="run `nvidia-smi` on the node; if the driver hangs, reboot the node", kind="no-nvml"
        )
    else:
        for index in run.gpus:
            if (use := memory.answer.get(index)) is not None:
                yield from _busy(use, own, run.state)


def _elsewhere_now(run: Run, there: Mapping[str, int]) -> Iterator[DeployError]:
    """GPUs that are lost; without any, those that the driver numbers anew: ranks would be on others than was planned.
    there: indices by UUID; empty where none could be read."""
    meant = [(index, uuid) for index, uuid in zip(run.gpus, run.gpu_uuids, strict=False) if uuid and there]
    again = f"`l40s-deploy up --model {run.model} --gang {run.gang}`"
    lost = [f"GPU {index} ({uuid})" for index, uuid in meant if uuid not in there]
    for where in lost:
        why = "it is lost: the driver does not show it any more"
        fix = f"reset or reseat it (`dmesg -T | grep Xid` may say why), or plan without it: {again}"
        yield DeployError(why, where=where, fix=fix, kind="gpu-lost")
    moved = [f"GPU {index} ({uuid}) is {there[uuid]} now" for index, uuid in meant if there.get(uuid, index) != index]
    if moved and not lost:
        why = f"the driver numbers them anew: {', '.join(moved)}"
        yield DeployError(why, where="GPUs", fix=f"plan with the numbers of now: {again}", kind="gpu-moved")


def _busy(use: gpus.GpuUse, own: OwnRun, state: str) -> Iterator[DeployError]:
    where = f"GPU {use.index}"
    strangers = [process for process in use.processes if not own.holds(use.index, process[0])]
    if strangers:
        pid, held = max(strangers, key=lambda process: process[1])
        if (agent := others.agent_above(pid)) is not None:
            yield _ours(agent, "gpu-busy", where, state)
            return
        who = f"pid {pid} ({supervision.title(pid)[:120] or 'not in our PID namespace'})"
        fix = "find out as root whose it is" if others.hidden_above(pid) else "stop that process"
        what = f"busy: {who} holds {in_words(held or use.used)} on it"
        yield DeployError(what, where=where, fix=f"{fix}, or use another node", kind="gpu-busy")
    elif not use.processes and use.used > gpus.IDLE_BYTES and use.index not in own.gpus:
        what = f"busy: {in_words(use.used)} are in use by a process that NVML does not show"
        fix = "find the container or PID namespace that uses it, for example with `docker ps`"
        yield DeployError(what, where=where, fix=fix, kind="gpu-busy")


def _user(run: Run) -> str:
    return run.engine_user or pwd.getpwuid(os.geteuid()).pw_name


def _may(run: Run, path: str, mode: int) -> bool:
    """Check access as the engine's user; root does so in a child process of that user."""
    if run.engine_user is None or os.geteuid() != 0:
        return os.access(path, mode)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            guardian.change_user(run)
            status = 0 if os.access(path, mode) else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
