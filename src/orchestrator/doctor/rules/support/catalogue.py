"""Every id that a finding or a cause can have on screen, with the text of `doctor --explain`.

Rules explain themselves, causes have their text and fix; what planning, checkpoint checkion and the proof of the
transport say is explained here. A test finds ids that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

from orchestrator.doctor.rules.support.registry import all_rules
from orchestrator.engines import causes, exceptions, host_causes, router
from orchestrator.engines.hang_kinds import KINDS
from orchestrator.planning.page_cache import KEPT
from orchestrator.planning.reserve import ID as RESERVE_SMALL
from orchestrator.protocol.advice import exact
from orchestrator.protocol.staging import CausePattern
from orchestrator.protocol.xids import XIDS

UNKNOWN_CAUSE = "unknown"
"""Stands for the id of a failure that matches no known cause."""

Kind = Literal["rule", "plan", "transport", "nettest", "bench", "golden", "checkpoint", "gang", "cause"]


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """kind: what reports it; reads: what it rests on; source: where it comes from."""

    id: str
    kind: Kind
    title: str
    explain: str
    reads: tuple[str, ...]
    source: str


_NCCL = "NCCL's INFO lines in the engine's log, after a start"
_FILES = "the checkpoint's files (`checkpoint check`)"
_PLAN = "the plan (`l40s-deploy plan`, `up`)"


def _entry(kind: Kind, reads: str, source: str, name: str, title: str, explain: str) -> FindingEntry:
    return FindingEntry(name, kind, title, explain, (reads,), source)


def _plan(name: str, title: str, explain: str, source: str) -> FindingEntry:
    return _entry("plan", _PLAN, source, name, title, explain)


_gang = partial(_entry, "gang", "the nodes' reports, and what the router has", "gang/")
_transport = partial(_entry, "transport", _NCCL, "NCCL src/init.cc, src/transport/net_ib")
_nettest = partial(_entry, "nettest", "the figures of the test", "docs/measure.md")
_checkpoint = partial(_entry, "checkpoint", _FILES, "safetensors format; SGLang's model loader")

_OTHERS = (
    _gang("CERT-EXPIRES", "the certificate that the router shows its clients expires within 14 days, or has",
          "Clients refuse the router from then on. It reads its certificate at its start: a renewed one is shown "
          "after `router down` and `router up`, which cost its clients some seconds."),
    _gang("GUARD-POWERLESS", "a guard can't bring a gang back",
          "What forbids a start lasts, a node stays away, or no layout fits what is left. It is told once a run, as an "
          "alarm: somebody has to act."),
    _gang("NODE-DISAGREES", "a node says otherwise than the inventory, this machine's record and its fellows",
          "Addresses, leader and what was asked for come from these. What the node says is shown; nothing is added, "
          "taken out or restarted for it."),
    _gang("NUMA-NOT-BOUND", "ranks of a serving gang may run away from their GPU's NUMA node",
          "A process that moves to the other socket reaches its GPU, card and memory across the sockets. It costs some "
          "speed and ends nothing."),
    _gang("ROUTER-ENTRY-MISSING", "a gang serves, and the router sends it no requests",
          "Its entry is missing or unhealthy there. `router up` adds every gang that serves."),
    _gang("ROUTER-TLS-FILES", "a TLS router serves, and the files of its certificate and key would not start it again",
          "It read them at its start. If its process ends or its machine restarts, it stays down until the files are "
          "there and belong together. Told on the machine that has at least one of them."),
    _plan("DRIVER-OLD", "the NVIDIA driver is too old for the stack",
          "The stack's CUDA runtime refuses to start on an older driver.", "NVIDIA CUDA compatibility tables"),
    _plan("GLIBC-OLD", "the node's C library is too old for the stack's packages",
          "Wheels state the oldest glibc that they support; an older one can't load them.", "PEP 600"),
    _plan("STACK-MISSING", "the stack's environment is not installed on the node",
          "`prepare` installs it; `up` never does.", "the stack's file"),
    _plan("STACK-PYTHON", "the stack does not support the node's Python version",
          "The stack's packages exist only for certain Python versions.", "the stack's file"),
    _plan("STACK-TESTED", "how well the stack is tested", "The stack's file states where it has run.",
          "the stack's file"),
    _plan("MODEL-UNREAD", "the model's directory could not be read",
          "It is not known whether the checkpoint is on this node.", "l40s_model_root of the inventory"),
    _plan("FACTS-UNREAD", "a node's hardware was not read",
          "Its interface, RDMA ports and GPUs are planned from the inventory, and not checked.", "the snapshot"),
    _plan("LAYOUT-NOT-MEASURED", "this layout has not been measured",
          "Speed and memory of this model, stack and layout are calculated, not measured.", "the model's profile"),
    _plan("DRAFT-UNPROVEN", "drafts with which this engine's text was not always right",
          "Speculative decoding may change no text. With vLLM and several drafted tokens a step it was compared on a "
          "CPU alone, and was not always the same.", "docs/proven.md"),
    _plan("PAGE-CACHE-SMALL", "the weight files that a node reads do not fit into its page cache",
          "The agent reads a node's weight files into memory while a run is armed, as many as fit beside the engine. "
          f"Files that do not fit come from the disk at every start. Calculated from the node's memory, less {KEPT}. "
          "`doctor` checks the running model; the cost is the time to read the rest again.",
          "proc_meminfo(5), NUMA domains of the snapshot"),
    _plan(RESERVE_SMALL, "a memory fraction leaves too little for graphs and activations",
          "What weights and KV cache do not take is for CUDA graphs and activations of a prompt's chunk. A fraction "
          "that leaves less than half of what the engine's own rule does costs graphs, or ends the gang under load.",
          "SGLang server_args.py; vLLM config/cache.py"),
    _plan("GID-INDEX-MIXED", "NCCL_IB_GID_INDEX stays unset",
          "No single GID index is RoCE v2 over IPv4 on all chosen ports. NCCL 2.21 and newer finds each port's own.",
          "NCCL src/transport/net_ib, ncclIbGetGidIndex"),
    _plan("PORT-FAILOVER", "NCCL's port failover is on, or asked for in vain",
          "If a port fails, NCCL continues over the other one of its card. It is off unless `l40s_port_failover: true` "
          "asks for it: NCCL's code for it may stop inference over RoCE for ever after hours of load (NVIDIA/nccl#2334,"
          " open; seen with 2.28.9, 2.30.4 and 2.30.7). A port that is back is used after the next restart.",
          "NCCL src/transport/net_ib/p2p_resiliency.cc; NVIDIA/nccl#2334, #2157, #2183"),
    _plan("PCIE-IPC-UNTUNED", "FlashInfer's all-reduce over PCIe is not tuned for this model and layout",
          "Its table of schedules covers 8 ranks from hidden size 6144 on, and 4 ranks at 4096 alone.",
          "flashinfer comm/pcie_ipc_policy.py; flashinfer issue 4463"),
    _plan("TRANSPORT-TCP", "traffic between the nodes will run over TCP",
          "If one node has no usable RDMA port, all nodes of the gang use TCP. l40s_transport can also request TCP.",
          "NCCL src/plugin/net.cc; the articles' third fault"),
    _plan("RDMA-PORTS-UNEVEN", "the nodes of a gang have different numbers of RDMA ports",
          "NCCL uses as many ports as the node with the fewest has.", "NCCL src/graph/search.cc"),
    _plan("PHASE-LATE", "a start is slower than expected",
          "A phase takes longer than the model's size and the disks explain.", "the phase's expected duration"),
    FindingEntry("OUT-OF-MEMORY", "cause", "the kernel's OOM killer killed a rank",
          "The node ran out of main memory, and the kernel killed the process that used the most.",
          ("the kernel's log",), "Linux mm/oom_kill.c"),
    FindingEntry("MEMORY-BROKEN", "cause", "a rank's main memory has an uncorrectable error",
          "The kernel took the page away and sent SIGBUS to the process that used it.", ("the kernel's log",),
          "Linux mm/memory-failure.c"),
    FindingEntry("PCIE-ERROR", "cause", "an uncorrectable PCIe error preceded a rank's death",
          "It was reported by the rank's GPU, by a bridge above it, or by one of the gang's network cards, up to 30 s "
          "before.", ("the kernel's log (AER, DPC)", "/sys/bus/pci/devices"), "Linux drivers/pci/pcie/aer.c, dpc.c"),
    FindingEntry("NIC-DOWN", "cause", "a link of the gang's network went down before a rank died",
          "The kernel logged it up to 30 s before; where its log can't be read, the link has no carrier now.",
          ("the kernel's log", "/sys/class/net/*/carrier"), "Linux drivers/net: mlx5 en_main.c, bonding bond_main.c"),
    FindingEntry("MACHINE-CHECK", "cause", "the processor reported a hardware error before a rank died",
          "A machine check exception or an uncorrectable memory error, up to 30 s before.", ("the kernel's log",),
          "Linux arch/x86/kernel/cpu/mce/core.c, drivers/edac/edac_mc.c"),
    FindingEntry(UNKNOWN_CAUSE, "cause", "the failure matches no known cause",
          "Neither the engine's log nor the kernel's shows a known error. `l40s-deploy why` shows how the process "
          "ended and its last log lines.", ("lines of the engine's log", "the kernel's log"), "docs/monitoring.md"),
    *(FindingEntry(xid.id, "cause", f"the kernel reported Xid {number}: the GPU {xid.what}",
            f"{xid.meaning} Fix: {xid.fix}", ("the kernel's log",), "NVIDIA, Xid Errors, Xid Catalog")
      for number, xid in XIDS.items()),
    *(FindingEntry(hang.id, "cause", hang.title, f"{hang.explain} Fix: {exact(hang.fix)}",
            ("stacks, counters and versions of a hung gang's nodes (`l40s-deploy why`)",), hang.source)
      for hang in KINDS.values()),
    FindingEntry("BENCH-SLOW", "bench", "a measured speed is more than 20 % below what was measured before",
          "The profile's expected figures, or the fastest earlier run of the same case, were faster.",
          ("the benchmark's record",), "inventory/models: expected; docs/measure.md"),
    FindingEntry("GOLDEN-DIFFERS", "golden", "the engine's answers are not the accepted ones",
          "Wrong weights, a wrong kernel config, peer-to-peer traffic or memory change text and raise no error.",
          ("answers to a dozen prompts, by token",), "docs/measure.md"),
    FindingEntry("TEXT-DIFFERS-IN-BATCH", "golden", "answers are other ones when several are made at once",
          "A kernel is chosen by the size of a batch: a wrong one, or its config, shows only under load.",
          ("answers to the accepted prompts among others, up to so many at once",), "docs/measure.md"),
    FindingEntry("GATE-FAILED", "golden", "a changed plan answers otherwise, or is slower than the old one",
          "`up --gate` compares the first changed gang with the plan that it served before; the old plan has returned.",
          ("answers to a dozen prompts, alone and among others", "the benchmarks of both plans"), "docs/gang-life.md"),
    _nettest("DATA-CORRUPT", "data arrives other than it was sent",
             "Before anything is timed, every transfer carries a pattern of sender, receiver and position, and every"
             " all-reduce has a known sum; the receiving GPU compares. Peer-to-peer through an IOMMU, ACS or a faulty"
             " driver corrupts data without any error; NCCL_P2P_DISABLE=1 proves it."),
    _nettest("NETTEST-SLOW-LINK", "links are slow, and others of their kind are not",
             "Below 80 % of what is expected, or under half the median of its kind, in both tries."),
    _nettest("NETTEST-SLOW-NODE", "a node is slow towards every other one",
             "All slow links begin or end at this node."),
    _nettest("NETTEST-SLOW", "the all-reduce is slow, and no single link is",
             "The collective takes longer than its expected time, while each pair of GPUs is as fast as it should be."),
    _nettest("NETTEST-TRANSPORT", "NCCL does not use the path that the topology calls for",
             "Its log counts other nodes than the PCIe tree does, or shows traffic inside a node over the network."),
    _transport("TRANSPORT-UNPROVEN", "NCCL did not log which network it uses",
               "Without its INFO lines, a fallback to TCP goes unnoticed."),
    _transport("TRANSPORT-NOT-RDMA", "the plan is RDMA, but NCCL uses another network",
               "The engine runs at the speed of TCP."),
    _transport("TRANSPORT-DEVICE-UNUSED", "NCCL did not open an RDMA port that the plan uses",
               "Its port was down or had no address when the engine started."),
    _transport("TRANSPORT-NO-GDR", "channels between nodes do not use GPUDirect RDMA",
               "Every byte passes through host memory."),
    _checkpoint("CONFIG-MISSING", "there is no config.json", "The model's architecture and dimensions are unknown."),
    _checkpoint("CONFIG-BROKEN", "config.json can't be read, or has an impossible number",
                "The model's dimensions are unknown or invalid."),
    _checkpoint("UNFINISHED", "re-blocking into this directory was interrupted, or is in progress",
                "Some weight files are missing. Run the same `checkpoint reblock` again."),
    _checkpoint("BLOCK-BROKEN", "the FP8 block size is not a pair of positive numbers",
                "The engine can't assign scales to blocks."),
    _checkpoint("ACTIVATION-SCHEME", "the activation scheme does not fit block-wise FP8",
                "Block-wise FP8 is served with dynamic activation scales only."),
    _checkpoint("LAYER-MISSING", "layers have no tensor", "The engine starts with uninitialised memory for them."),
    _checkpoint("MTP-MISSING", "the multi-token-prediction layers in config.json are missing",
                "The model serves, but not with speculative decoding by these layers."),
    _checkpoint("EXPERT-MISSING", "a layer has fewer experts than the model",
                "The engine starts with uninitialised memory for the others."),
    _checkpoint("INDEX-BROKEN", "model.safetensors.index.json can't be used",
                "The index lists the file of each tensor; without it nothing can be loaded."),
    _checkpoint("INDEX-SIZE", "the total size in the index differs from the files'",
                "A file was changed, or is incomplete."),
    _checkpoint("NO-WEIGHTS", "there is no weight file", "The directory holds no *.safetensors file."),
    _checkpoint("SHARD-BROKEN", "a weight file's header can't be read", "The file is damaged."),
    _checkpoint("SHARD-MISSING", "a weight file that the index lists is missing", "The download is incomplete."),
    _checkpoint("SHARD-TRUNCATED", "a weight file is shorter than its header states", "The download is incomplete."),
    _checkpoint("SHARD-UNUSED", "a weight file is not in the index", "The engine may or may not load it."),
    _checkpoint("TENSOR-MISSING", "a tensor that the index lists is in no file", "The engine refuses to load it."),
    _checkpoint("TENSOR-TWICE", "a tensor is in two files", "Which one is loaded depends on the order of files."),
    _checkpoint("TENSOR-UNLISTED", "a tensor is in a file but not in the index", "The engine may not load it."),
    _checkpoint("SCALE-MISSING", "an FP8 tensor has no scale", "Its values can't be restored: wrong text."),
    _checkpoint("SCALE-ORPHAN", "a scale belongs to no tensor", "Files of two conversions may be mixed."),
    _checkpoint("SCALE-SHAPE", "a scale's shape does not fit its tensor and block size",
                "Scales would be applied to the wrong blocks: wrong text."),
)  # fmt: skip


@cache
def catalogue() -> Mapping[str, FindingEntry]:
    """Every id with its entry; rules first, by id."""
    entries: dict[str, FindingEntry] = {}
    rules = (FindingEntry(rule.id, "rule", rule.title, rule.explain, rule.reads, rule.source) for rule in all_rules())
    for entry in (*rules, *_OTHERS, *_of_causes()):
        entries.setdefault(entry.id, entry)
    return entries


def _of_causes() -> Iterator[FindingEntry]:
    modules = (causes, host_causes, exceptions)
    tables = [value for module in modules for value in vars(module).values() if isinstance(value, tuple)]
    for cause in (*(cause_known for table in tables for cause_known in table), *router.WATCH.causes):
        if isinstance(cause, CausePattern):
            yield FindingEntry(
                cause.id,
                "cause",
                cause.text,
                f"Fix: {exact(cause.fix)}" if cause.fix else cause.text,
                ("lines of the engine's log",),
                "engines/causes.py, exceptions.py, host_causes.py: words of the engine, NCCL, Gloo and the host",
            )
