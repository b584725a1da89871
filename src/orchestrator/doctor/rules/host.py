"""What a host gives its engine: room, limits, memory, clock, settings of the kernel, addresses."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from statistics import median
from typing import Any, NamedTuple

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import Rule, finding, note, stop, unjudged, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS
from orchestrator.planning.host import HostFacts, state_dir
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.sizes import in_words
from orchestrator.topology.gpus import whole
from orchestrator.topology.pci import number

MIB, GIB = 1 << 20, 1 << 30


@Rule(
    id="LIMITS",
    title="a resource limit is too low for the engine",
    explain=(
        "RDMA pins memory: without an unlimited memlock, registration fails inside NCCL. The rule checks the limits"
        " that the engine will have. Under systemd its unit sets them (root only); elsewhere the node agent raises"
        " them as far as allowed, and the probe tries the same in its own process."
    ),
    reads=("RLIMIT_MEMLOCK, RLIMIT_NOFILE, RLIMIT_STACK of the probe", "/run/systemd/system", "size of /dev/shm"),
    source="NCCL troubleshooting guide (memlock, shm, stack); the agent's unit (LimitMEMLOCK=infinity)",
    weight=6,
).of_node
def limits(node: Node) -> Iterator[Finding]:
    """memlock stops a gang that needs RDMA; a small /dev/shm stops any; few files and an endless stack are notes. The
    agent is a unit, which sets memlock and files, where systemd runs and the agent is root."""
    host = node.snapshot.host
    if not (host.get("systemd") and host.get("uid") == 0):
        yield from _memlock(node)
        files = _attainable(node, "nofile")
        if files is not None and 0 <= files < _FEWEST_FILES:
            yield note(
                f"at most {files} files may be open; 1048576 is recommended",
                f"RLIMIT_NOFILE, raised as far as allowed = {files}",
                effect="the engine can run out of file descriptors with many connections",
                fix="run `l40s-deploy prepare --tags limits`",
                devices=("nofile",),
            )
    if _limit(node, "limits", "stack", soft=True) == _UNLIMITED:
        yield note(
            "the thread stack size is unlimited",
            "RLIMIT_STACK (soft) = unlimited",
            effect="each NCCL thread may reserve a large amount of memory for its stack",
            fix="set `ulimit -s 8192` for the engine's user",
            devices=("stack",),
        )
    size = whole(host.get("shm_bytes"))
    if 0 < size < GIB:
        yield stop(
            f"/dev/shm has {size >> 20} MiB, 1 GiB is needed",  # noqa: S108
            f"statvfs /dev/shm = {size} bytes",
            effect="NCCL and the engine's processes share memory there: they fail with 'unhandled system error' or a"
            " bus error",
            fix="run `mount -o remount,size=16G /dev/shm` (in a container: --shm-size 16g or --ipc host)",
            devices=("/dev/shm",),  # noqa: S108
        )


_UNLIMITED = -1
_FEWEST_FILES = 65536


def _limit(node: Node, key: str, which: str, *, soft: bool = False) -> int | None:
    value = part(node.snapshot.host, key).get(which)
    pair = value if isinstance(value, (list, tuple)) and len(value) == 2 else (None, None)
    bound = pair[0] if soft else pair[1]
    return bound if isinstance(bound, int) else None


def _attainable(node: Node, which: str) -> int | None:
    """What the engine can have: what the probe could raise its limit to, else its hard limit; None where not read."""
    raised = _limit(node, "limits_attainable", which)
    return _limit(node, "limits", which) if raised is None else raised


def _memlock(node: Node) -> Iterator[Finding]:
    host, limit = node.snapshot.host, _attainable(node, "memlock")
    if limit is None or limit == _UNLIMITED or not node.rail_ports or node.spec.transport == "tcp":
        return
    unread = [str(lacking) for lacking in node.topology.lacks(*RAILS)]
    unread += [f"{name}: not collected" for name in ("systemd", "uid", "limits_attainable") if name not in host]
    if unread:
        yield unjudged(limits, node, "what the limits depend on", unread)
        return
    yield stop(
        f"memlock is {limit >> 10} KiB where the engine will run; RDMA needs unlimited",
        f"RLIMIT_MEMLOCK, raised as far as allowed = {limit}",
        f"user = {host.get('user') or 'unknown'}, systemd {'runs' if host.get('systemd') else 'does not run'} here",
        effect="NCCL can't register memory with the RDMA cards: ncclSystemError in the first collective",
        fix="run `l40s-deploy prepare --tags limits`; in a service of your own, set LimitMEMLOCK=infinity",
        devices=("memlock",),
    )


@Rule(
    id="DISK-FULL",
    title="a file system has too little free space for a gang",
    explain=(
        "Checks the file systems of /, /tmp, the state directory (runs, logs, caches of compiled kernels) and the"
        " model root. Less than 64 MiB where a start writes is a stop. The state directory should have 4 GiB (each of"
        " five runs keeps up to 128 MiB of its engine's log, failed ones 1 GiB together; the rest is for compiled"
        " kernels), / and /tmp 1 GiB each. A full model root still serves the checkpoints it holds, but accepts no"
        " push; `checkpoint push` itself compares the free space with the checkpoint's size."
    ),
    reads=("statvfs of /, /tmp, the state directory and l40s_model_root",),
    source="statvfs(3), f_bavail; LOG_LIMIT of protocol/staging.py, RUNS_KEPT of node/verbs/stage.py; the space for"
    " compiled kernels is an allowance, not measured",
    weight=7,
).of_node
def disk_full(node: Node) -> Iterator[Finding]:
    """One finding a file system: no start succeeds on a full one, little room is noted."""
    host, spec = node.snapshot.host, node.spec
    disks = part(host, "disks")
    state = state_dir(spec, _account(host))
    paths = {"root": "/", "tmp": "/tmp", "state": state, "models": spec.model_root}  # noqa: S108
    rooms = list[_Room]()
    for place, need in _NEEDS.items():
        disk = part(disks, place)
        if "error" in disk:
            yield _size_unread(paths[place], disk["error"])
        elif whole(disk.get("bytes")) > 0 and {"free_bytes", "device"} <= disk.keys():
            rooms.append(
                _Room(need, paths[place], *(whole(disk.get(name)) for name in ("bytes", "free_bytes", "device")))
            )
    for of_one in collected((room.device, room) for room in rooms).values():
        if short := [room for room in of_one if room.free < room.need.wanted]:
            yield _short(short)


def _account(host: Mapping[str, Any]) -> HostFacts:
    return HostFacts(user=str(host.get("user") or ""), home=str(host.get("home") or ""))


class _Need(NamedTuple):
    """least: bytes below which a start fails; wanted: bytes below which there is a note; holds: its contents."""

    least: int
    wanted: int
    holds: str


_NEEDS = {
    "root": _Need(64 * MIB, GIB, "the system"),
    "tmp": _Need(64 * MIB, GIB, "temporary files"),
    "state": _Need(64 * MIB, 4 * GIB, "runs, logs and caches"),
    "models": _Need(0, GIB, "models"),
}


class _Room(NamedTuple):
    need: _Need
    path: str
    size: int
    free: int
    device: int


def _short(rooms: list[_Room]) -> Finding:
    stops, first = any(room.free < room.need.least for room in rooms), rooms[0]
    held = ", ".join(f"{room.need.holds} ({room.path})" for room in rooms)
    largest = f"du -xh --max-depth=2 {shlex.quote(first.path)} | sort -h"
    fix = f"free space there; find the largest directories with `{largest}`"
    if any(room.need is _NEEDS["state"] for room in rooms):
        fix += "; or set l40s_state_dir to a larger disk"
    return finding(
        Severity.STOP if stops else Severity.NOTE,
        f"{first.path} is {100 * (first.size - first.free) // first.size} % full: {in_words(first.free)} of"
        f" {in_words(first.size)} free, {in_words(sum(room.need.wanted for room in rooms))} needed for {held}",
        *(f"statvfs {room.path}: {room.free} of {room.size} bytes free" for room in rooms),
        effect="no run can be staged, and a running engine loses its log and its compiled kernels"
        if stops
        else "it may fill up while a gang runs, or during the next push",
        fix=fix,
        devices=tuple(room.path for room in rooms),
    )


def _size_unread(path: str, error: object) -> Finding:
    hangs = ": its file system does not respond" if error == "ETIMEDOUT" else ""
    return unknown(
        f"the free space of {path} could not be read{hangs}",
        f"statvfs {path}: {error}",
        effect="it is not known whether there is enough free space",
        fix=f"run `df -h {shlex.quote(path)}` on the node",
        devices=(path,),
    )


@Rule(
    id="MODEL-ROOT-REMOTE",
    title="the model root is on a network file system",
    explain=(
        "At TP32 every node reads about half of a checkpoint, all at once from one server. SGLang 0.5.23 exits when a"
        " rank has waited 480 s for the others to load (0.4.4: 300 s), and no flag changes that."
    ),
    reads=("/proc/mounts", "l40s_model_root of the inventory"),
    source="sglang 0.5.23 srt/model_executor/model_runner_components/load_model_utils.py and 0.4.4 model_runner.py, "
    "UNBALANCED_MODEL_LOADING_TIMEOUT_S; PR 39629: 539 GB, four nodes, one NFS server: 290 s warm, over 480 s cold",
    weight=60,
).of_node
def model_root_remote(node: Node) -> Iterator[Finding]:
    """A note where the model root is mounted from elsewhere."""
    mount = _mount_of(node.snapshot.text("/proc/mounts"), node.spec.model_root)
    if mount is not None and mount.kind.startswith(_REMOTE):
        yield note(
            f"model root {node.spec.model_root} is on {mount.kind} from {mount.source}",
            f"/proc/mounts: {mount.source} {mount.point} {mount.kind}",
            effect="all nodes load from one server; the engine exits if one rank is 480 s behind the others, which a"
            " cold cache can cause",
            fix="copy the checkpoint to local disks with `checkpoint push`, or read the files on"
            " every node before `up`",
            devices=(mount.point,),
        )


_REMOTE = ("nfs", "cifs", "smb", "ceph", "lustre", "beegfs", "glusterfs", "gpfs", "9p", "virtiofs", "fuse.")
"""Beginnings of file system types whose bytes come over a network, or from a host behind us."""


class _Mount(NamedTuple):
    source: str
    point: str
    kind: str


def _mount_of(mounts: str, path: str) -> _Mount | None:
    """The mount that a path is on: the longest mount point above it, the last of several at one place."""
    lines = (tuple(map(_plain, line.split(" ")[:3])) for line in mounts.splitlines())
    there = [_Mount(*fields) for fields in lines if len(fields) == 3]
    above = [mount for mount in there if f"{path.rstrip('/')}/".startswith(f"{mount.point.rstrip('/')}/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def _plain(field: str) -> str:
    """proc(5) and getmntent(3): blanks and backslashes are written in octal."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


@Rule(
    id="PUBLIC-ADDRESS",
    title="a node has a public address",
    explain="torch's rendezvous store and the engine's queues listen on every address, without a password.",
    reads=("addresses of all interfaces",),
    source="torch TCPStore; SGLang's ZMQ sockets",
    weight=70,
).of_node
def public_address(node: Node) -> Iterator[Finding]:
    """One note with all addresses that anybody on the internet could reach."""
    public = [
        (interface.name, address)
        for interface in node.topology.interfaces
        for address in (*interface.ipv4, *interface.ipv6)
        if _is_public(address)
    ]
    if public:
        yield note(
            "public address: " + ", ".join(address for _, address in public),
            *(f"address of {interface} = {address}" for interface, address in public),
            effect="rendezvous and engine queues also listen there, without a password",
            fix="add a firewall that lets only the cluster's own network reach this node's ports",
            devices=tuple(sorted({interface for interface, _ in public})),
        )


def _is_public(address: str) -> bool:
    try:
        return ip_interface(address).is_global
    except ValueError:
        return False


@Rule(
    id="HOST-SETTING",
    title="a host setting adds latency",
    explain="Settings that add jitter to each of the 122 all-reduces of a decode step.",
    reads=(
        "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
        "/sys/devices/system/cpu/cpu0/cpuidle/*",
        "/proc/sys/kernel/numa_balancing",
        "/proc/sys/vm/nr_hugepages",
        "/proc/sys/vm/zone_reclaim_mode",
    ),
    source="NVIDIA and NCCL tuning guides; Linux Documentation/admin-guide/pm/cpuidle.rst and sysctl/vm.rst; not"
    " measured",
    weight=80,
).of_node
def host_setting(node: Node) -> Iterator[Finding]:
    """One note for each setting; a file that does not exist is no finding."""
    for name, setting in _SETTINGS.items():
        for title, evidence in setting.judge(node):
            yield note(title, evidence, effect=setting.effect, fix=setting.fix, devices=(name,))


DEEP_US = 50
"""Microseconds to wake up from: about one all-reduce of a single token."""
_CPU = "/sys/devices/system/cpu"
Wrong = Iterator[tuple[str, str]]
"""(title, evidence) where a node has a setting wrong; nothing where it is right or not there."""


def _governor(node: Node) -> Wrong:
    policies = [f"{_CPU}/cpufreq/{name}/scaling_governor" for name in node.snapshot.names(f"{_CPU}/cpufreq")]
    others = collected(
        (value, path) for path in policies if (value := node.snapshot.text(path)) not in ("", "performance")
    )
    if others:
        common, paths = max(others.items(), key=lambda item: len(item[1]))
        evidence = f"{paths[0]} = {common} (of {len(paths)} policies)"
        yield f"scaling_governor is {common}; performance is better here", evidence


def _deep_sleep(node: Node) -> Wrong:
    folder = f"{_CPU}/cpu0/cpuidle"
    for state in reversed(node.snapshot.names(folder)):
        latency = number(node.snapshot.text(f"{folder}/{state}/latency"))
        if latency > DEEP_US and node.snapshot.text(f"{folder}/{state}/disable") == "0":
            name = node.snapshot.text(f"{folder}/{state}/name") or state
            evidence = f"{folder}/{state}: name = {name}, latency = {latency} us, disable = 0"
            yield f"CPUs may enter sleep state {name}, which takes {latency} us to leave", evidence
            return


def _numa_balancing(node: Node) -> Wrong:
    value = node.snapshot.text("/proc/sys/kernel/numa_balancing")
    if number(value) != 0:
        yield f"numa_balancing is {value}; 0 is better here", f"/proc/sys/kernel/numa_balancing = {value}"


def _hugepages(node: Node) -> Wrong:
    """Huge pages that are set aside are memory that loading the weights has not."""
    count = number(node.snapshot.text("/proc/sys/vm/nr_hugepages"))
    size = next((line for line in node.snapshot.text("/proc/meminfo").splitlines() if line.startswith("Hugepages")), "")
    taken = count * (number(size.split()[1]) if len(size.split()) > 1 else 2048) >> 20
    total = sum(domain.memory_bytes for domain in node.topology.numa) >> 30
    if total and taken * 4 >= total:
        evidence = f"/proc/sys/vm/nr_hugepages = {count}"
        yield f"{taken} GiB of {total} GiB of memory are reserved as huge pages", evidence


def _zone_reclaim(node: Node) -> Wrong:
    """With one NUMA domain there is no other whose free memory could be taken."""
    path = "/proc/sys/vm/zone_reclaim_mode"
    value = node.snapshot.text(path)
    if number(value) > 0 and len(node.topology.numa) > 1:
        yield (
            f"zone_reclaim_mode is {value}: a full NUMA domain drops cached files while others have free memory",
            f"{path} = {value}",
        )


_LESS_CACHE = "less page cache for loading weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostSetting:
    judge: Callable[[Node], Wrong]
    fix: str
    effect: str = "more jitter in every all-reduce (not measured)"


_SETTINGS: Mapping[str, _HostSetting] = {
    "scaling_governor": _HostSetting(judge=_governor, fix="run `sudo cpupower frequency-set -g performance`"),
    "cpuidle": _HostSetting(
        judge=_deep_sleep, fix="run `sudo cpupower idle-set -D 10`, or `sudo tuned-adm profile latency-performance`"
    ),
    "numa_balancing": _HostSetting(judge=_numa_balancing, fix="run `sudo sysctl -w kernel.numa_balancing=0`"),
    "nr_hugepages": _HostSetting(
        judge=_hugepages, fix="run `sudo sysctl -w vm.nr_hugepages=0`, unless something needs them", effect=_LESS_CACHE
    ),
    "zone_reclaim_mode": _HostSetting(
        judge=_zone_reclaim, fix="run `sudo sysctl -w vm.zone_reclaim_mode=0`", effect=_LESS_CACHE
    ),
}


@Rule(
    id="CLOCK-SKEW",
    title="a node's clock is wrong",
    explain="l40s-deploy does not compare clocks of different nodes, but log lines of several nodes can't be put in"
    " order.",
    reads=("the node's clock when it was read, and the controller's before and after",),
    source="comparison with peers",
    weight=85,
).of_cluster
def clock_skew(cluster: Cluster) -> Iterator[Finding]:
    """One note for each node that is more than a second away from the median of all, beyond what the way explains.

    host['clock_offset_s'] is the node's clock less the controller's, host['round_trip_s'] twice its error.
    """
    offsets = {
        node.name: float(offset)
        for node in cluster.nodes
        if isinstance(offset := node.snapshot.host.get("clock_offset_s"), (int, float))
    }
    middle = median(offsets.values()) if offsets else 0.0
    for name, offset in offsets.items() if len(offsets) > 1 else ():
        way = cluster.snapshots[name].host.get("round_trip_s")
        unsure = way / 2 if isinstance(way, (int, float)) else 0.0
        if abs(offset - middle) > LARGEST_S + unsure:
            yield note(
                f"the clock is {abs(offset - middle):.1f} s {'ahead' if offset > middle else 'behind'}",
                f"offset from the controller = {offset:+.2f} s ±{unsure:.2f}, median of all nodes {middle:+.2f} s",
                effect="log lines of several nodes can't be put in order by their timestamps",
                fix="run `timedatectl set-ntp true`, then check with `chronyc tracking`",
                node=name,
            )


LARGEST_S = 1.0
