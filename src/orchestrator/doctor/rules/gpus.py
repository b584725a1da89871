"""What NVML and the driver say of each GPU: health, memory, modes, peer-to-peer access."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.doctor.rules.support.cluster import Input, Node, gpu_address
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, stop, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.gpu_facts import short_name
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED, part
from orchestrator.model.topology import PLACES, Area, PathType
from orchestrator.model.words import counted
from orchestrator.protocol.gauges import slowed_by
from orchestrator.protocol.kernel_lines import CONTAINED_ERROR, NOT_STARTED
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.xids import XIDS
from orchestrator.topology.distance import Distances, p2p_level
from orchestrator.topology.gpus import whole
from orchestrator.topology.pci import card, small_number
from orchestrator.topology.speed import Traffic, price
from orchestrator.topology.stated import nameless_gpus, nameless_words, pasted, recognised, texts

Device = Mapping[str, Any]
"""A GPU as NVML describes it."""
_Ailment = tuple[Severity, str, str, str, str]
"""Severity, title, evidence, effect, fix."""
RESERVE = 1 << 30
"""Bytes used that nothing but the driver may explain, where NVML does not tell its reserve apart."""


def _refusals(node: Node) -> list[Finding] | None:
    """Of a text in which nvidia-smi answers with an error, and nowhere with a GPU."""
    said = [words for words in texts(pasted(node.snapshot).get("refused")) if _REFUSED.match(words)]
    if not said or _ANSWERS & {*recognised(node.snapshot)}:
        return None
    mismatch = any("mismatch" in words for words in said)
    return [
        stop(
            f"NVML does not respond: {said[0].removeprefix(_NVIDIA_SMI)}",
            *said,
            effect="no engine can start there",
            fix="reboot, or unload and load NVIDIA's kernel modules: its library was updated below them"
            if mismatch
            else "see `dmesg` for the driver's reason (NVRM); in a container, whether it has the GPUs",
        )
    ]


_ANSWERS = {
    "nvidia-smi", "nvidia-smi topo -m", "nvidia-smi topo -p2p", "nvidia-smi -q", "nvidia-smi --query-gpu",
    "nvidia-smi's MIG devices", "a list of GPUs", "p2pBandwidthLatencyTest", "simpleP2P", "nvbandwidth", "nccl-tests",
    "devices of nccl-tests", "NCCL's log",
}  # fmt: skip
"""What shows that the driver answered, before or after the error."""
_NVIDIA_SMI = "nvidia-smi said "
_REFUSED = re.compile(rf"{_NVIDIA_SMI}(?!'Unable to determine)")
"""What is not about one GPU."""


@Rule(
    id="NVML-UNREADABLE",
    title="the NVIDIA driver does not respond",
    explain="Without NVML, CUDA does not work either. A call that never returns means that the driver hangs.",
    reads=("NVML nvmlInit, in a child process with a deadline",),
    source="NVML API reference, nvmlReturn_t",
    weight=4,
    needs=(Area.GPUS,),
    on_text=_refusals,
).of_node
def nvml_unreadable(node: Node) -> Iterator[Finding]:
    """A stop where the node has (or should have) GPUs; unknown if NVML was not asked."""
    error = node.topology.nvml_error
    evidence = f"nvmlInit: {error}", f"GPUs on the PCI bus: {len(node.topology.gpus)}"
    if not error or not node.spec.gpus:
        return
    if error == NOT_RECORDED:
        yield unknown(
            "NVML's answers were not recorded",
            *evidence,
            effect="health, memory and P2P of the GPUs are not known",
            fix=node.input.again,
        )
    else:
        yield stop(
            f"NVML does not respond: {error}",
            *evidence,
            effect="no engine can start on this node",
            fix="run `nvidia-smi` on the node; reload the driver (`modprobe nvidia`) or reboot",
        )


@Rule(
    id="GPU-HEALTH",
    title="a GPU has memory errors or is throttled",
    explain="An uncorrectable ECC error kills the process that hits it. A throttled GPU slows down all ranks of the"
    " gang.",
    reads=(
        "NVML nvmlDeviceGetTotalEccErrors",
        "NVML nvmlDeviceGetRemappedRows",
        "NVML nvmlDeviceGetCurrentClocksEventReasons",
    ),
    source="NVML API: nvmlClocksEventReasons (HW slowdown 0x8, SW thermal 0x20, HW thermal 0x40, brake 0x80)",
    weight=8,
).of_node
def gpu_health(node: Node) -> Iterator[Finding]:
    """For each GPU: errors stop; a pending repair and throttling slow."""
    for device in (*node.nvml_devices, *nameless_gpus(node.snapshot)):
        which = f"GPU {device['index']}" if "index" in device else nameless_words(device)
        for severity, words, evidence, effect, fix in _ailments(device):
            yield finding(
                severity,
                f"{which} {words}",
                f"NVML of {which}: {evidence}",
                effect=effect,
                fix=fix,
                devices=(gpu_address(device),),
            )


def _ailments(device: Device) -> Iterator[_Ailment]:
    if device.get("error"):
        where = " in its row" if "index" in device else ""
        words = f"nvidia-smi shows {device['error']}{where}"
        cost = "no engine can start on this GPU"
        yield Severity.STOP, "does not answer", words, cost, XIDS[79].fix
    if device.get("unanswered"):
        yield Severity.STOP, "does not answer", str(device["unanswered"]), "no engine can start on it", XIDS[79].fix
    if device.get("sensor_error"):
        words = "nvidia-smi shows ERR! in its second row"
        yield Severity.SLOW, "has a sensor that can't be read", words, "it may fail or slow down", XIDS[79].fix
    yield from _memory_errors(device)
    yield from _faulty_rows(device)
    yield from _repairs(device)
    yield from _throttling(device)


def _memory_errors(device: Device) -> Iterator[_Ailment]:
    errors = whole(part(device, "ecc").get("uncorrected"))
    if errors > 0:
        yield (
            Severity.STOP,
            f"has {errors} uncorrectable memory error{'s' if errors > 1 else ''}",
            f"nvmlDeviceGetTotalEccErrors(uncorrected, volatile) = {errors}",
            "a process that hits such an error dies, and the gang with it",
            "reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if the errors return, replace the card",
        )


def _faulty_rows(device: Device) -> Iterator[_Ailment]:
    """NVML gives rows as (corrected, uncorrected, pending, failed)."""
    remapped = device.get("remapped_rows")
    *_, pending, failed = rows = (
        list(remapped) if isinstance(remapped, (list, tuple)) and len(remapped) == 4 else [0, 0, 0, 0]
    )
    evidence = f"nvmlDeviceGetRemappedRows = {rows} (corrected, uncorrected, pending, failed)"
    if failed:
        yield (
            Severity.STOP,
            "could not repair a faulty memory row",
            evidence,
            "a process that hits it dies, and the gang with it",
            "replace the card; `nvidia-smi -q -d ROW_REMAPPER` shows the rows",
        )
    elif pending:
        yield (
            Severity.SLOW,
            "will repair a faulty memory row at its next reset",
            evidence,
            "until then a process may hit it and die, and the gang with it",
            "reset the GPU (`nvidia-smi --gpu-reset`) or reboot before the gang starts",
        )


def _repairs(device: Device) -> Iterator[_Ailment]:
    """What nvidia-smi says that waits for a reset."""
    for key, words in (("pages_pending", "has memory pages to retire"), ("reset_required", "needs a reset")):
        if device.get(key):
            yield (
                Severity.SLOW,
                words,
                f"nvidia-smi -q: {words}",
                "until then a process may hit faulty memory and die, and the gang with it",
                "reset the GPU (`nvidia-smi --gpu-reset`) or reboot before the gang starts",
            )


def _throttling(device: Device) -> Iterator[_Ailment]:
    reasons = whole(device.get("clocks_event_reasons"))
    slowing = slowed_by(reasons)
    if slowing:
        yield (
            Severity.SLOW,
            f"is throttled: {', '.join(slowing)}",
            f"nvmlDeviceGetCurrentClocksEventReasons = {reasons:#x}",
            "every step of the gang waits for this GPU (the cost depends on how far its clocks dropped)",
            (
                "check the fans, air flow and power supply of this node; `nvidia-smi -q -d"
                " PERFORMANCE,TEMPERATURE` shows the reason"
            ),
        )


@Rule(
    id="GPU-XID",
    title="the driver reported an Xid error of failing hardware or a hung GPU",
    explain=(
        "The kernel log goes back to the last boot. A GPU that fell off the bus or hung once is likely to do it"
        " again, and stops all 32 ranks. GPU-MISSING and GPU-HEALTH report what NVML shows of it now."
    ),
    reads=("/dev/kmsg",),
    source="NVIDIA GPU Deployment and Management Documentation, XID Errors",
    weight=9,
).of_node
def gpu_xid(node: Node) -> Iterator[Finding]:
    """One finding for each GPU with such an error since the last boot; unknown where the log may not be read."""
    yield from _xids(node)
    if (error := part(node.snapshot.host, "kernel_log").get("error")) and node.nvml_devices:
        yield unknown(
            "the kernel log could not be read for driver errors (Xid)",
            f"/dev/kmsg: {error}",
            effect="a GPU that failed since the last boot goes unnoticed",
            fix=node.input.as_root,
        )


_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b")
_FALLEN = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{5,18})\b.{0,256}fallen off the bus")
_NOT_STARTED = re.compile(r"NVRM: GPU ([0-9a-fA-F:.]{5,18}): (?:RmInitAdapter|rm_init_adapter) failed")
"""The driver's messages where it has not come so far as to report an Xid (NVIDIA kernel-open/nvidia/nv.c)."""
_TEST = "; then test it with `dcgmi diag -r 3`"
_WITHOUT_A_DEATH = {
    63: ("has a memory row that was marked for repair", f"{XIDS[64].fix}{_TEST}"),
    94: (CONTAINED_ERROR, f"{XIDS[48].fix}{_TEST}"),
}
"""Xids that end no rank by themselves: what happened to a GPU, and the fix."""
_REPORTED = {number: (xid.what, xid.fix) for number, xid in XIDS.items()} | _WITHOUT_A_DEATH
"""With those that do, which `why` and an agent name in the same words."""


class _DriverError(NamedTuple):
    """place: PCI address without function; what: of a GPU, 'fell off the bus (Xid 79)'"""

    place: str
    what: str
    fix: str
    line: str


def _driver_error(line: str) -> _DriverError | None:
    """Of a line that tells of broken hardware."""
    if match := _FALLEN.search(line):
        return _DriverError(card(match[1].lower()), XIDS[79].what, XIDS[79].fix, line)
    if match := _NOT_STARTED.search(line):
        return _DriverError(card(match[1].lower()), NOT_STARTED, XIDS[79].fix, line)
    match = _XID.search(line)
    if match is None or int(match[2]) not in _REPORTED:
        return None
    what, fix = _REPORTED[int(match[2])]
    return _DriverError(card(match[1].lower()), f"{what} (Xid {match[2]})", fix, line)


def _each_once(errors: Sequence[_DriverError]) -> str:
    """What happened: without the words that others have with their Xid."""
    words = dict.fromkeys(error.what for error in errors)
    return " and ".join(word for word in words if not any(other.startswith(f"{word} (") for other in words))


def _xids(node: Node) -> Iterator[Finding]:
    since = "" if node.input is Input.PASTED else " since the last boot"
    errors_of = collected((error.place, error) for line in node.driver_lines if (error := _driver_error(line)))
    for address, errors in errors_of.items():
        yield slow(
            f"GPU at {address} {_each_once(errors)}{since}",
            *(f"{node.log_of_drivers}: {error.line.strip()[:200]}" for error in errors[-4:]),
            effect="if it happens again, the gang fails (loading the weights again takes minutes)",
            fix=errors[-1].fix,
            devices=(address,),
        )


@Rule(
    id="GPU-MODE",
    title="a GPU's mode prevents or slows a start",
    explain=(
        "Compute mode 'prohibited' refuses every CUDA process. Without persistence mode, the driver shuts a GPU down"
        " when its last process ends, and the next start takes a few seconds longer."
    ),
    reads=("NVML nvmlDeviceGetComputeMode", "NVML nvmlDeviceGetPersistenceMode"),
    source="NVML API, nvmlComputeMode_t (2 is prohibited)",
    weight=11,
).of_node
def gpu_mode(node: Node) -> Iterator[Finding]:
    """A stop for prohibited GPUs and a note for missing persistence."""
    for severity, key, wrong, mode, call, effect, fix in (
        (
            Severity.STOP,
            "compute_mode",
            2,
            "compute mode of {} is prohibited",
            "nvmlDeviceGetComputeMode = 2",
            "no CUDA process can start there",
            "run `sudo nvidia-smi -c DEFAULT`",
        ),
        (
            Severity.NOTE,
            "persistence",
            0,
            "persistence mode of {} is off",
            "nvmlDeviceGetPersistenceMode = 0",
            "each start of an engine waits a few seconds for the driver; no cost while it runs",
            "run `sudo systemctl enable --now nvidia-persistenced`",
        ),
    ):
        those = [device for device in node.nvml_devices if device.get(key) == wrong]
        which = f"GPU{'s' if len(those) > 1 else ''} {', '.join(str(device.get('index')) for device in those)}"
        if those:
            yield finding(
                severity,
                mode.format(which),
                f"NVML of {which}: {call}",
                effect=effect,
                fix=fix,
                devices=_addresses(those),
            )


def _access_stated(node: Node) -> list[Finding] | None:
    """Of pairs of which a matrix tells, without where the GPUs are."""
    stated = [(device.get("index"), part(device, "p2p")) for device in node.nvml_devices]
    pairs = {
        tuple(sorted((str(index), str(other)))): whole(part(ways, other).get("read"))
        for index, ways in stated
        for other in ways
        if str(other) != str(index)
    }
    if not pairs:
        return _not_reached_by_cuda(node)
    kinds = collected((status, pair) for pair, status in pairs.items() if status)
    return [
        note(
            f"{counted(len(refused), 'pair')} of GPUs can't access each other directly: {_P2P_STATUS.get(status, '')}",
            *(f"nvidia-smi topo -p2p: GPU{first} and GPU{other}" for first, other in refused[:6]),
            effect="NCCL copies between them through host memory",
            fix="GeForce cards have no P2P; otherwise check the driver's parameters (NVreg_*), ACS and the IOMMU",
        )
        for status, refused in kinds.items()
    ]


def _not_reached_by_cuda(node: Node) -> list[Finding] | None:
    """By CUDA's samples, which count devices in their own order."""
    peers = part(pasted(node.snapshot), "peers")
    refused = [pair for pair, reached in peers.items() if reached is False]
    if not refused:
        return [] if peers else None
    return [
        note(
            f"{counted(len(refused), 'pair')} of CUDA's devices can't access each other directly",
            *(f"devices {pair}" for pair in refused[:6]),
            effect="NCCL copies between them through host memory",
            fix="GeForce cards have no P2P; otherwise check the driver's parameters (NVreg_*), ACS and the IOMMU",
        )
    ]


@Rule(
    id="GPU-P2P-OFF",
    title="GPUs can't access each other's memory",
    explain=(
        "NCCL asks NVML whether reads and writes between two GPUs work. If not, all data between them passes through"
        " host memory. Checked for every pair that NCCL would connect directly: up to PXB by default, farther on AMD"
        " with two GPUs or with NCCL before 2.23."
    ),
    reads=("NVML nvmlDeviceGetP2PStatus (read, write)",),
    source="NCCL src/graph/paths.cc ncclTopoCheckP2p; NVML nvmlGpuP2PStatus_t",
    weight=22,
    needs=PLACES,
    on_text=_access_stated,
).of_node
def gpu_p2p_off(node: Node) -> Iterator[Finding]:
    """One finding per node, with the GPUs of all pairs."""
    broken = list(_broken_pairs(node))
    if broken:
        gpus = sorted({index for first, other, *_ in broken for index in (first, other)})
        paths = "/".join(path.name for path in sorted({path for _, _, path, _ in broken}))
        addresses = {gpu.index: gpu.address for gpu in node.topology.gpus}
        yield slow(
            f"{len(broken)} pair{'s' if len(broken) > 1 else ''} of GPUs ({paths}) can't access each other"
            f" directly (GPUs {', '.join(map(str, gpus))})",
            *(words for *_, words in broken[:6]),
            effect="NCCL copies between them through host memory; " + price(Traffic.CARD_ON_ROOT_PORT),
            fix="check the driver's version and parameters (NVreg_*), ACS and the IOMMU;"
            " `nvidia-smi topo -p2p rw` shows all pairs",
            devices=tuple(addresses[index] for index in gpus),
        )


_P2P_STATUS = {
    1: "chipset not supported", 2: "GPU not supported", 3: "root port's topology not supported",
    4: "disabled by a registry key", 5: "not supported", 6: "unknown",
}  # fmt: skip


def _broken_pairs(node: Node) -> Iterator[tuple[int, int, PathType, str]]:
    keys = {gpu.index: gpu.key for gpu in node.topology.gpus if gpu.index >= 0}
    distances, farthest = Distances(node.topology), p2p_level(node.topology, node.nccl)
    for device in node.nvml_devices:
        own = device.get("index")
        for index, status in part(device, "p2p").items():
            if not isinstance(own, int) or not isinstance(status, Mapping):
                continue
            other = small_number(str(index))
            bad = {way: value for way, value in status.items() if whole(value)}
            path = distances.path_type(keys.get(own, ""), keys.get(other, "")) if bad else PathType.DIS
            if path <= farthest:
                words = ", ".join(f"{way} {value} ({_P2P_STATUS.get(value, 'unknown')})" for way, value in bad.items())
                yield own, other, path, f"NVML of GPU {own}: nvmlDeviceGetP2PStatus to GPU {other}: {words}"


@Rule(
    id="GPU-BAR1-SMALL",
    title="a GPU's BAR 1 is smaller than its memory",
    explain=(
        "Cards and other GPUs access a GPU's memory through BAR 1. An L40S has a BAR 1 of 64 GiB for its 48 GB of"
        " memory; in display mode, or without 64-bit addresses above 4 GiB in the BIOS, it is 256 MiB."
    ),
    reads=("NVML nvmlDeviceGetBAR1MemoryInfo", "NVML nvmlDeviceGetMemoryInfo"),
    source="NVIDIA GPUDirect RDMA documentation, BAR sizes; nvidia-smi -q of an L40S (BAR1 65536 MiB)",
    weight=23,
).of_node
def gpu_bar1_small(node: Node) -> Iterator[Finding]:
    """One finding per node, with its small windows."""
    small = [gpu for gpu in node.nvml_devices if 0 < whole(gpu.get("bar1_total")) < _memory(gpu, "total")]
    if small:
        yield slow(
            f"BAR 1 of {len(small)} GPU{'s is' if len(small) > 1 else ' is'} too small for the memory",
            *(
                f"NVML of GPU {gpu.get('index')}: BAR1 {gpu['bar1_total'] >> 20} MiB,"
                f" memory {_memory(gpu, 'total') >> 20} MiB"
                for gpu in small
            ),
            effect="peer-to-peer and GPUDirect RDMA fail or fall back to host memory; " + price(Traffic.HOST_STAGED),
            fix="enable Above 4G Decoding and Resizable BAR in the BIOS; turn display mode off with NVIDIA's"
            " displaymodeselector",
            devices=_addresses(small),
        )


@Rule(
    id="GPU-BUSY",
    title="processes hold GPU memory",
    explain=(
        "Only processes, and memory used beyond the driver's reserve, count here: an idle GPU shows a few hundred MiB"
        " in the first version of NVML's call, which includes that reserve. `up` checks again on the node before it"
        " starts."
    ),
    reads=("NVML nvmlDeviceGetComputeRunningProcesses", "NVML nvmlDeviceGetMemoryInfo"),
    source="NVML API; four idle H200s that showed 615 MiB used in the first version of the call",
    weight=60,
).of_node
def gpu_busy(node: Node) -> Iterator[Finding]:
    """One note per node, with the GPUs and the processes."""
    busy = [gpu for gpu in node.nvml_devices if gpu.get("processes") or _memory(gpu, "used") > RESERVE]
    if busy:
        yield note(
            f"{len(busy)} GPU{'s are' if len(busy) > 1 else ' is'} in use",
            *(
                f"NVML of GPU {gpu.get('index')}: {_memory(gpu, 'used') >> 20} MiB used,"
                f" processes {_pids(gpu) or 'none shown'}"
                for gpu in busy
            ),
            effect="a gang can't start on them, unless these processes are its own",
            fix="check with `l40s-deploy status` whether a gang uses them; otherwise find the processes with"
            " `nvidia-smi` and stop them",
            devices=_addresses(busy),
        )


def _pids(device: Device) -> str:
    listed = device.get("processes")
    processes = listed if isinstance(listed, (list, tuple)) else ()
    return ", ".join(str(process.get("pid")) for process in processes if isinstance(process, Mapping))


@Rule(
    id="GPU-ECC",
    title="ECC is off on some or all GPUs",
    explain=(
        "With ECC off, faulty memory gives wrong text instead of an error. On GDDR cards ECC takes a sixteenth of the"
        " memory (L40S: 46068 instead of 49140 MiB). Where GPUs differ, the smallest limits the KV cache of the gang."
    ),
    reads=("NVML nvmlDeviceGetEccMode",),
    source="NVIDIA Ada GPU memory error management; nvidia-smi -e",
    weight=61,
).of_node
def gpu_ecc(node: Node) -> Iterator[Finding]:
    """One note per node; GPUs that know no ECC are left out."""
    modes = {gpu_address(device): part(device, "ecc").get("enabled") for device in node.nvml_devices}
    off = [address for address, enabled in modes.items() if enabled == 0]
    known = sum(enabled in (0, 1) for enabled in modes.values())
    if off:
        yield note(
            f"ECC is off on {len(off)} of {known} GPUs",
            *(f"NVML of {address}: nvmlDeviceGetEccMode = 0" for address in off[:4]),
            effect="memory errors are not detected and give wrong text; "
            + (
                "where GPUs differ in memory, the smallest limits the KV cache of all"
                if len(off) < known
                else "ECC takes a sixteenth of the memory of GPUs with GDDR, and none of those with HBM"
            ),
            fix="run `sudo nvidia-smi -e 1`, then reset the GPUs or reboot",
            devices=tuple(off),
        )


@Rule(
    id="GPU-MIXED",
    title="the GPUs of a node are of different models",
    explain="Every rank gets the same share of the work: the slowest GPU sets the pace, the smallest the KV cache.",
    reads=("NVML nvmlDeviceGetName",),
    source="comparison of a node's GPUs",
    weight=41,
).of_node
def gpu_mixed(node: Node) -> Iterator[Finding]:
    """Of those that a gang may use. In a recording the odd one may be there for a screen: a note."""
    kinds = collected((short_name(gpu.name), gpu) for gpu in node.gpus if gpu.name)
    if len(kinds) > 1:
        few = min(kinds.values(), key=len)
        yield finding(
            Severity.SLOW if node.input is Input.LIVE else Severity.NOTE,
            f"GPUs of different models: {', '.join(f'{len(own)} x {kind}' for kind, own in kinds.items())}",
            *(f"NVML of GPU {gpu.index}: {gpu.name}" for gpu in few),
            effect="every step of the gang waits for the slowest GPU; the smallest memory limits the KV cache",
            fix="use GPUs of one model: `l40s_gpus` names those of a gang",
            devices=tuple(gpu.address or f"GPU {gpu.index}" for gpu in few),
        )


def _memory(device: Device, name: str) -> int:
    return whole(part(device, "memory").get(name))


def _addresses(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(gpu_address(device) for device in devices)
