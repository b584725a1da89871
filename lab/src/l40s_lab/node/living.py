"""A running node as faults access it from outside: its processes, its network, its files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

from l40s_lab import files
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.home import Home
from l40s_lab.life.machines import machine_of
from l40s_lab.life.status import require
from l40s_lab.loopback.supervisor import node_folder
from l40s_lab.namespaces import links
from l40s_lab.namespaces.layers import MEMORY
from l40s_lab.namespaces.supervisor import NODES
from l40s_lab.processes import Identity, has_in_environment, those
from orchestrator.protocol.errors import InputError, NodeError

_RANK = re.compile(rb"^(?:sglang::scheduler|VLLM::Worker)(?:_(?!TP)[A-Z_]+\d+)*(?:_TP(\d+))?(?![A-Za-z_])")
"""A rank's title (sglang srt/managers/scheduler.py, vllm v1/executor/multiproc_executor.py); without tensor parallelism
it has no TP."""
_GUARDIAN = b"l40s-guardian\n"
"""What a guardian calls itself (node/engine/guardian.py); its command line is its agent's."""
_COMMAND_S = 30.0


@dataclass(frozen=True)
class LivingNode:
    """One node of a running lab.

    machine: what it was built as
    """

    place: Home
    blueprint: Blueprint
    index: int
    machine: NodeMachine

    @property
    def name(self) -> str:
        return self.blueprint.nodes[self.index]

    @property
    def has_namespaces(self) -> bool:
        """Whether it has its own processes and network (levels 1 and 2)."""
        return self.blueprint.level > 0

    @property
    def memory(self) -> Path:
        """The lab's tmpfs, as its supervisor sees it."""
        return self.blueprint.path / MEMORY

    @cached_property
    def supervisor(self) -> int:
        """Process id of the lab's supervisor; raises NodeError if it is gone."""
        found = self.place.supervisor()
        if found is None or not found.alive:
            raise NodeError("its supervisor is gone", where=f"lab {self.blueprint.name}", fix="l40s-deploy lab up")
        return found.pid

    @cached_property
    def pid(self) -> int:
        """Process id of the node's PID 1; raises NodeError if the node is switched off."""
        pid = self.find_pid()
        if pid is None:
            raise NodeError(
                "it is powered off",
                where=self.name,
                fix=f"power it on with `l40s-deploy lab heal {self.name} power-off`",
            )
        return pid

    def find_pid(self) -> int | None:
        """Process id of the node's PID 1, None if the node is switched off."""
        with suppress(OSError, ValueError):
            inside = json.loads((self.blueprint.path / NODES).read_text()).get(self.name)
            return next((pid for pid in _children(self.supervisor) if _numbers(pid)[-2:] == [inside, 1]), None)
        return None

    def processes(self) -> list[Identity]:
        """Every process of the node."""
        if self.has_namespaces:
            ours = os.readlink(f"/proc/{self.pid}/ns/pid")  # noqa: PTH115
            return list(those(lambda entry: os.readlink(entry / "ns/pid") == ours))  # noqa: PTH115
        mark = f"L40S_LAB_NVML={node_folder(self.blueprint, self.name)}/nvml.conf"
        return list(those(lambda entry: has_in_environment(entry, mark)))

    def ranks(self) -> dict[int, Identity]:
        """TP rank -> its process."""
        found = {}
        for identity in self.processes():
            if title := _RANK.match(cmdline(identity.pid)):
                found[int(title[1] or 0)] = identity
        return found

    def agents(self) -> list[Identity]:
        """Our product's agents (`... agent RUN_FOLDER`), whatever program they were started from."""
        return [one for one in self._supervisors() if _comm(one.pid) != _GUARDIAN]

    def guardians(self) -> list[Identity]:
        """The agents' forks that start and end their engines."""
        return [one for one in self._supervisors() if _comm(one.pid) == _GUARDIAN]

    def _supervisors(self) -> list[Identity]:
        return [identity for identity in self.processes() if _is_agent(cmdline(identity.pid).split(b"\0"))]

    def users_of_gpu(self, index: int) -> list[Identity]:
        """The processes that hold memory on a GPU."""
        claims = self.file("/run/l40s-lab/gpu-claims")
        users = {int(name.split(".")[1]) for name in os.listdir(claims) if name.split(".")[0] == str(index)}  # noqa: PTH208
        return [
            one for one in self.processes() if (_numbers(one.pid) or [0])[-1 if self.has_namespaces else 0] in users
        ]

    def link(self, interface: str) -> str:
        """The other end of an interface's cable, a link in the lab's own network."""
        names = [one.name for one in self.machine.interfaces]
        return links.cable(self.index, names.index(interface))

    def file(self, path: str) -> Path:
        """A file of the node, by its path inside, to be read and replaced from outside."""
        if self.has_namespaces:
            return Path(f"/proc/{self.pid}/root") / path.lstrip("/")
        folder = node_folder(self.blueprint, self.name)
        inside = path.removeprefix("/run/l40s-lab/")
        return folder / ("root" + path if inside == path else inside)

    def write(self, path: str, text: str) -> None:
        """Replace a file of the node."""
        files.put(self.file(path), text)

    def ip_here(self, commands: Iterable[str]) -> None:
        """Run ip(8) commands in the node's network."""
        links.batch(commands, network=f"/proc/{self.pid}/ns/net")

    def ip_outside(self, commands: Iterable[str]) -> None:
        """Run ip(8) commands in the lab's own network, where the cables end."""
        links.batch(commands, network=f"/proc/{self.supervisor}/ns/net")

    def run_here(self, words: list[str], *, what: str) -> str:
        """Run a command in all of the node's namespaces, but with the real clock; returns stdout, raises NodeError."""
        return _run(["nsenter", "-t", str(self.pid), "-a", "--", *words], what=what)


def find_node(name: str, node: str) -> LivingNode:
    """A node of a lab, by name; raises InputError if there is no such lab or node."""
    place, blueprint = require(name)
    if node not in blueprint.nodes:
        known = f"{blueprint.nodes[0]} to {blueprint.nodes[-1]}" if len(blueprint.nodes) > 1 else blueprint.nodes[0]
        raise InputError(
            f"there is no node {node!r}; the nodes are {known}", where=f"lab {name}", fix="run `l40s-deploy lab status`"
        )
    index = blueprint.nodes.index(node)
    return LivingNode(place, blueprint, index, machine_of(blueprint, index))


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _numbers(pid: int) -> list[int]:
    """A process's ids in each PID namespace, from ours downwards."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return []
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
    return [int(number) for number in line.split()[1:]]


def cmdline(pid: int) -> bytes:
    """A process's words, each with a final zero byte; b"" if it is gone."""
    return _shown(pid, "cmdline")


def _comm(pid: int) -> bytes:
    return _shown(pid, "comm")


def _shown(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _is_agent(words: list[bytes]) -> bool:
    return any(word == b"agent" and after.startswith(b"/") for word, after in pairwise(words[2:]))


def _tell(pid: int, *commands: str, tool: tuple[str, ...], package: str, fix: str) -> None:
    """In the network of a process: the node's `pid`, or the lab's own network with its `supervisor`."""
    try:
        links.batch(commands, network=f"/proc/{pid}/ns/net", tool=tool)
    except FileNotFoundError:
        fix = f"run `apt-get install {package}`"
        raise NodeError(f"{tool[0]} is missing", where="this machine", fix=fix) from None
    except OSError as failure:
        raise NodeError(str(failure), where="this machine", fix=fix) from None


nft = partial(_tell, tool=("nft", "-f", "-"), package="nftables", fix="load the kernel's nf_tables")
tc = partial(
    _tell,
    tool=("tc", "-batch", "-"),
    package="iproute2",
    fix="use a kernel with the queue htb and the filter u32 (CONFIG_NET_SCH_HTB, CONFIG_NET_CLS_U32)",
)


def _run(words: list[str], *, what: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode:
        raise NodeError(
            f"{what}: {(done.stderr or done.stdout).strip()[:300]}",
            where=words[2],
            fix="run `l40s-deploy lab down`, then `l40s-deploy lab up`",
        )
    return done.stdout
