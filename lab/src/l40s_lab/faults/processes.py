"""Faults of what runs on a node, and of the node as a whole."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from l40s_lab import preload, syscalls
from l40s_lab.faults import ssh_server, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.life.home import LOG
from l40s_lab.namespaces import cgroups, cpu_time
from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.namespaces.node import DISK
from l40s_lab.namespaces.restart import NEW_DISK
from l40s_lab.namespaces.supervisor import CGROUP
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity, wait_until, wake_waiters
from orchestrator.node.processes import read
from orchestrator.protocol.errors import InputError, NodeError

_STOPS_S = 5.0
_ENDS_S = 10.0
_BOOTS_S = 60.0
_MOST_RANKS = 4096
_SPOILT = "/run/l40s-lab/wrong-token"
_SPOILT_IN_BATCH = f"{_SPOILT}-in-batch"
_LIMITS = "/etc/security/limits.d/zz-l40s-lab-fault.conf"
_REPLACED_S = 0.3
_LOOKS_FULL = 4
_ALMOST_ALL = 90
_LEAST_BLOCKS = 1
"""A tmpfs of size 0 has no limit (tmpfs(5))."""
_SPARE = (0, *(1 << power for power in range(16, 31, 2)))
_PLACES = (f"/run/l40s-lab/{DISK}", "/tmp", "/root")  # noqa: S108 - the node's own


def _rank(node: LivingNode, asked: Words) -> Identity:
    """The process of a TP rank on this node."""
    wanted = words.number(asked, 0, what="a TP rank", lowest=0, highest=_MOST_RANKS)
    ranks = node.ranks()
    if wanted not in ranks:
        runs = f"it runs {', '.join(map(str, sorted(ranks)))}" if ranks else "no rank runs there"
        raise InputError(f"TP rank {wanted} is not on {node.name}: {runs}", where="ARG", fix="l40s-deploy status")
    return ranks[wanted]


def _kill_rank(node: LivingNode, asked: Words) -> Undo:
    """Kills only that process."""
    number = words.signal_number(asked, 1)
    _rank(node, asked).kill(number)
    return {}


def _hang_rank(node: LivingNode, asked: Words) -> Undo:
    """Its peers wait for it forever."""
    found = _rank(node, asked)
    found.kill(signal.SIGSTOP)
    return {"rank": asdict(found)}


def _continue_rank(_: LivingNode, undo: Undo) -> None:
    """If it still exists."""
    Identity(**undo["rank"]).kill(signal.SIGCONT)


def _kill_agents(node: LivingNode, _: Words) -> Undo:
    """Kills agents only, not the processes that they started."""
    return _kill(node, node.agents(), "kill-agent")


def _kill_guardians(node: LivingNode, _: Words) -> Undo:
    return _kill(node, node.guardians(), "kill-guardian")


def _kill(node: LivingNode, processes: Sequence[Identity], fault: str) -> Undo:
    if not processes:
        raise InputError(f"no agent runs on {node.name}", where=fault, fix="start its gang first")
    for process in processes:
        process.kill()
    return {}


def _spoil_answers(node: LivingNode, _: Words, *, file: str = _SPOILT) -> Undo:
    """The stand-in checks for this file at every request."""
    node.write(file, "")
    return {}


def _restore_answers(node: LivingNode, _: Undo, *, file: str = _SPOILT) -> None:
    node.file(file).unlink(missing_ok=True)


def _freeze(node: LivingNode, _: Words) -> Undo:
    """Repeated until no running process is left that could have started another."""
    stopped: dict[int, Identity] = {}

    def all_stand_still() -> bool:
        running = [one for one in node.processes() if not _stands(one)]
        for one in running:
            one.kill(signal.SIGSTOP)
            stopped[one.pid] = one
        return not running

    still = wait_until(all_stand_still, deadline_s=_STOPS_S)
    undo = {"stopped": [asdict(one) for one in stopped.values()]}
    if not still:
        _thaw(node, undo)
        raise NodeError("its processes could not be stopped", where=node.name, fix="try again")
    return undo


def _thaw(node: LivingNode, undo: Undo) -> None:
    """Continue the processes that we stopped, and the shells into the node that stopped with them."""
    for one in undo["stopped"]:
        Identity(**one).kill(signal.SIGCONT)
    if node.has_namespaces:
        wake_waiters(node.pid)


def _stands(one: Identity) -> bool:
    found = read(one.pid)
    return found is None or found.state in "TZ"


def _cut_power(node: LivingNode, asked: Words) -> Undo:
    """Links first: the kernel of a killed machine would send FIN for every socket."""
    if asked and asked[0] != NEW_DISK:
        raise InputError(f"found {asked[0]!r}, wanted {NEW_DISK} or nothing", where="ARG", fix="l40s-deploy lab faults")
    first = Identity.of(node.pid)
    node.ip_outside(f"link set {node.link(one.name)} down" for one in node.machine.interfaces)
    if first is not None and not first.end(deadline_s=_ENDS_S):
        raise NodeError("its PID 1 does not end", where=node.name, fix="l40s-deploy lab down")
    return {"new_disk": bool(asked)}


def _boot(node: LivingNode, undo: Undo) -> None:
    disk = [NEW_DISK] if undo["new_disk"] else []
    with (node.blueprint.path / LOG).open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "l40s_lab.namespaces.restart", node.blueprint.directory, node.name, *disk],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_BOOTS_S,
            check=False,
        )
    if done.returncode or not wait_until(lambda: node.find_pid() is not None, deadline_s=_ENDS_S):
        raise NodeError(
            f"it does not boot: {node.place.log_tail()}",
            where=node.name,
            fix="run `l40s-deploy lab down`, then `l40s-deploy lab up`",
        )


def _stop_sshd(node: LivingNode, _: Words) -> Undo:
    """Its children are left alone."""
    ssh_server.stop(node)
    return {}


def _start_sshd(node: LivingNode, _: Undo) -> None:
    """With its former limits."""
    ssh_server.start(node)


def _limit_memlock(node: LivingNode, asked: Words) -> Undo:
    """With systemd, through pam_limits; else as in a container without CAP_SYS_RESOURCE."""
    kib = words.number(asked, 0, what="KiB", lowest=1, highest=1 << 40, default=64)
    if node.blueprint.level == 2:
        node.write(_LIMITS, "".join(f"{who} - memlock {kib}\n" for who in ("*", "root")))
    else:
        ssh_server.stop(node)
        ssh_server.start(node, memlock=kib << 10)
    return {}


def _restore_memlock(node: LivingNode, _: Undo) -> None:
    """New sessions get the limit that the node was built with."""
    if node.blueprint.level == 2:
        node.file(_LIMITS).unlink(missing_ok=True)
    else:
        ssh_server.stop(node)
        ssh_server.start(node)


def _fill_disk(node: LivingNode, _: Words) -> Undo:
    """Limit the memory behind the disk to what it uses, until it has used all of that for a while: a file that is just
    being replaced frees room a moment later, on a busy machine a long one."""
    sizes = limits = _resized(node, {})
    looks = 0
    while looks < _LOOKS_FULL:
        time.sleep(_REPLACED_S)
        looks, before, limits = looks + 1, limits, _resized(node, {})
        if limits != before:
            looks = 0
    return {"sizes": sizes}


def _restore_disk(node: LivingNode, undo: Undo) -> None:
    _resized(node, {str(place): int(size) for place, size in undo["sizes"].items()})


def _resized(node: LivingNode, wanted: dict[str, int]) -> dict[str, int]:
    """Set the places to these sizes, or to what they use now; returns their former sizes in bytes."""

    def work() -> dict[str, int]:
        mounts.join()
        had = {}
        for place in filter(os.path.ismount, wanted or _PLACES):
            had[place] = (now := os.statvfs(place)).f_blocks * now.f_frsize
            if place in wanted:
                syscalls.mount("none", place, flags=syscalls.MS_REMOUNT, options=f"size={wanted[place]}")
            else:
                _limit_to_its_use(place)
        return had

    with Spaces(node.pid, ["mnt"]) as mounts:
        return in_child(work)


def _limit_to_its_use(place: str) -> None:
    """The kernel refuses a size below what is used: whoever writes meanwhile gets the more room, the faster it is."""
    for spare in _SPARE:
        now = os.statvfs(place)
        size = max(now.f_blocks - now.f_bfree, _LEAST_BLOCKS) * now.f_frsize + spare
        try:
            return syscalls.mount("none", place, flags=syscalls.MS_REMOUNT, options=f"size={size}")
        except OSError as error:
            if error.errno != errno.EINVAL or spare == _SPARE[-1]:
                raise
    return None


def _skew_clock(node: LivingNode, asked: Words) -> Undo:
    """The kernel's clock is shared with this machine, so only programs get a different time."""
    text = asked[0] if asked else "90"
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        fix = f"for example: `l40s-deploy lab break {node.name} clock-skew 90`"
        raise InputError(f"found {text!r}, wanted seconds", where="ARG", fix=fix)
    return _load(node, "clock", "clock", f"{int(text)}\n")


def _slow_disk(node: LivingNode, asked: Words) -> Undo:
    """There is no device to slow down, since a node's disk is memory: programs are delayed."""
    rate = words.number(asked, 0, what="MiB a second", lowest=1, highest=100_000, default=20)
    return _load(node, "disk", "disk-rate", f"{rate << 20}\n")


def _slow_cpu(node: LivingNode, asked: Words) -> Undo:
    """Of one processor: a node has no processors of its own."""
    percent = words.number(asked, 0, what="percent", lowest=1, highest=_ALMOST_ALL, default=10)
    tree = Path(f"/proc/{node.supervisor}/root") / (node.memory / CGROUP).relative_to("/")
    mark = node.blueprint.mark
    try:
        folder = cpu_time.limit(mark, cgroups.of_lab(mark, tree) / node.name, percent / 100, node.processes)
    except OSError as failure:
        fix = "use a machine whose control groups have the controller cpu"
        raise NodeError(f"its processor time can't be limited: {failure}", where=node.name, fix=fix) from None
    return {"folder": str(folder)}


def _full_speed(_: LivingNode, undo: Undo) -> None:
    cpu_time.lift(Path(str(undo["folder"])))


_LIST = "/etc/ld.so.preload"
_FOLDER = "/run/l40s-lab"


def _load(node: LivingNode, library: str, setting: str, value: str) -> Undo:
    """Make every program that starts from now on load a library of the preload package.

    setting, value: name and content of the file that the library reads
    """
    node.write(f"{_FOLDER}/{setting}", value)
    place = node.file(f"{_FOLDER}/lib{library}.so")
    place.write_bytes(preload.build(library).read_bytes())
    place.chmod(0o755)
    node.write(_LIST, _others(node, library) + f"{_FOLDER}/lib{library}.so\n")
    return {}


def _unload(library: str, setting: str, node: LivingNode, _: Undo) -> None:
    """Programs that start from now on no longer load it; its files are deleted once the list no longer names it."""
    left = _others(node, library)
    if left:
        node.write(_LIST, left)
    else:
        node.file(_LIST).unlink(missing_ok=True)
    for name in (setting, f"lib{library}.so"):
        node.file(f"{_FOLDER}/{name}").unlink(missing_ok=True)


def _others(node: LivingNode, library: str) -> str:
    try:
        lines = node.file(_LIST).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(line for line in lines if not line.rstrip().endswith(f"/lib{library}.so"))


FAULTS = (
    Fault(
        name="clock-skew",
        argument="[SECONDS]",
        summary="the clock is SECONDS s ahead (default: 90; -90 is behind) for every program that starts from now on",
        shows="the time of day in new sessions and programs; running ones keep theirs",
        levels=(1, 2),
        strike=_skew_clock,
        heal=partial(_unload, "clock", "clock"),
    ),
    Fault(
        name="disk-full",
        summary="the root file system, /tmp and the home directories are completely full (ENOSPC)",
        shows="df, and every program that writes, including running ones",
        levels=(1, 2),
        strike=_fill_disk,
        heal=_restore_disk,
    ),
    Fault(
        name="freeze",
        summary="every process is stopped (SIGSTOP); the kernel still accepts connections; `lab heal` continues them",
        shows="TCP connects, but nothing answers",
        levels=(1, 2),
        strike=_freeze,
        heal=_thaw,
    ),
    Fault(
        name="hang-rank",
        argument="R",
        summary="the process of TP rank R is stopped (SIGSTOP)",
        shows="the process's state, requests that never end, /health_generate",
        strike=_hang_rank,
        heal=_continue_rank,
    ),
    Fault(
        name="kill-agent",
        summary="the node agent is killed (SIGKILL)",
        shows="the agent's process is gone; its engine must end too",
        lasting=False,
        strike=_kill_agents,
    ),
    Fault(
        name="kill-guardian",
        summary="the process between agent and engine is killed (SIGKILL)",
        shows="the guardian's and the engine's processes are gone; the agent says so",
        lasting=False,
        strike=_kill_guardians,
    ),
    Fault(
        name="kill-rank",
        argument="R [SIGNAL]",
        summary="the process of TP rank R gets SIGNAL (default: KILL, as from the OOM killer)",
        shows="the process is gone, and its GPU memory is free",
        lasting=False,
        strike=_kill_rank,
    ),
    Fault(
        name="memlock",
        argument="[KIB]",
        summary="sessions may lock KIB (default: 64) KiB of memory, and can't raise that",
        shows="ulimit -l in new sessions; with systemd the agent's unit has its own limit",
        levels=(1, 2),
        strike=_limit_memlock,
        heal=_restore_memlock,
    ),
    Fault(
        name="power-off",
        argument="[new-disk]",
        summary="the node loses power: links first, then all processes at once; `lab heal NODE power-off` powers it on"
        " again, with what was on its disk or, after `new-disk`, with an empty one",
        shows="nothing answers, and connections are not closed",
        levels=(1, 2),
        rebuilds=True,
        strike=_cut_power,
        heal=_boot,
    ),
    Fault(
        name="power-on",
        summary="power returns: the node boots, with the hardware and the disk that it had",
        shows="it answers again",
        levels=(1, 2),
        lasting=False,
        cures="power-off",
    ),
    Fault(
        name="slow-cpu",
        argument="[PERCENT]",
        summary="all programs of the node together get PERCENT (default: 10) percent of one processor's time",
        shows="everything takes longer: sessions, checks, the phases of a start; the network is as fast as before",
        levels=(2,),
        strike=_slow_cpu,
        heal=_full_speed,
    ),
    Fault(
        name="slow-disk",
        argument="[MIB]",
        summary="programs that start from now on read and write files at MIB (default: 20) MiB per second",
        shows="file reads and writes; the stand-in loads no weights, so its phases do not change",
        levels=(1, 2),
        strike=_slow_disk,
        heal=partial(_unload, "disk", "disk-rate"),
    ),
    Fault(
        name="sshd-dead",
        summary="the SSH server is stopped; open connections stay",
        shows="new SSH connections are refused; everything else responds",
        levels=(1, 2),
        strike=_stop_sshd,
        heal=_start_sshd,
    ),
    Fault(
        name="thaw",
        summary="the processes of a frozen node continue",
        shows="they respond again",
        levels=(1, 2),
        lasting=False,
        cures="freeze",
    ),
    Fault(
        name="wrong-token",
        summary="one token of every answer differs (stand-in engine; on the leader)",
        shows="golden check",
        levels=(1, 2),
        strike=_spoil_answers,
        heal=_restore_answers,
    ),
    Fault(
        name="wrong-token-in-batch",
        summary="one token differs of every answer that is made beside three others (stand-in engine; on the leader)",
        shows="golden check --requests 8",
        levels=(1, 2),
        strike=partial(_spoil_answers, file=_SPOILT_IN_BATCH),
        heal=partial(_restore_answers, file=_SPOILT_IN_BATCH),
    ),
)
