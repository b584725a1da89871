"""The hangs that are told apart: what each one is, what to do, and which versions of NCCL are known for it.

A known version alone names no hang: what each needs to have been read is in gang/hangs.py. What is 'seen' is what its
source reports; none is called fixed, since who reports that a newer one helped has not waited for long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HangKind:
    """One hang. title: what it is, as the beginning of a cause's text; fix: GANG stands for the gang's name."""

    id: str
    title: str
    explain: str
    fix: str
    source: str


@dataclass(frozen=True, slots=True)
class SeenIn:
    """Versions of NCCL in which a hang was seen, both ends included."""

    id: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    words: str
    source: str

    def has(self, version: str) -> bool:
        """Whether a version lies in it; False for one that is not known."""
        match = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version)
        return match is not None and self.first <= tuple(map(int, match.groups())) <= self.last


SEEN_IN = (
    SeenIn(
        id="HANG-GRAPH-NCCL",
        first=(2, 28, 0),
        last=(2, 28, 99),
        words="a replayed CUDA graph whose collectives cross nodes stopped with 2.28.9, and did not with 2.30.4",
        source="vllm-project/vllm#52504",
    ),
    SeenIn(
        id="HANG-IB-RESILIENCY",
        first=(2, 28, 9),
        last=(2, 30, 7),
        words="over RoCE, after hours of load, with 2.28.9, 2.30.4 and 2.30.7; the report is open",
        source="NVIDIA/nccl#2334",
    ),
    SeenIn(
        id="HANG-NETREG",
        first=(2, 31, 2),
        last=(2, 31, 2),
        words="a receiver clears the flag of a later operation on registered buffers, with 2.31.2",
        source="NVIDIA/nccl#2389",
    ),
)
_RESTART = "run `l40s-deploy restart GANG`"
_LOGS = "`l40s-deploy logs GANG`"

KINDS = {
    kind.id: kind
    for kind in (
        HangKind(
            "HANG-HOST",
            "a rank is stopped, or waits for a disk, and the others wait for it",
            "Its process is stopped (T), or its main thread waits in the kernel for a file at both looks (D, or blocked"
            " in a system call on one).",
            "see what holds that process: its file system, or who stopped it (SIGCONT lets it go on); then " + _RESTART,
            "proc(5), state",
        ),
        HangKind(
            "HANG-COMPILE",
            "kernels are being compiled: this is no hang",
            "A compiler runs below a rank, or a rank stands in one. All other ranks wait for it, and go on by"
            " themselves. A guard does not restart meanwhile.",
            "wait: a restart would begin the compilation again",
            "processes below the engine; sglang and flashinfer compile at first use",
        ),
        HangKind(
            "HANG-AUTOTUNE",
            "ranks stand in FlashInfer's autotuner, with peer-to-peer between GPUs off",
            "The tuner's ranks agree on each tactic by a collective; over a path through host memory they lose step.",
            "start it without autotuning: `-- --disable-flashinfer-autotune` behind `up` for SGLang, or allow"
            " peer-to-peer; then " + _RESTART,
            "local-inference-lab/rtx6kpro#15; vllm-project/vllm#52291",
        ),
        HangKind(
            "HANG-RANK-BEHIND",
            "the other ranks wait in a collective for a rank that has not come to it",
            "At two instants the others stand in the same operation, and this rank in code of its own; or NCCL's RAS"
            " counts fewer operations of it at both.",
            "look at the place in the code that is named, and at that rank's lines in " + _LOGS + "; then " + _RESTART,
            "vllm-project/vllm#48720; sgl-project/sglang#32928",
        ),
        HangKind(
            "HANG-DIVERGED",
            "ranks wait in different collectives, each for the other",
            "All ranks have to call the same collectives in the same order. At two instants they stand in different"
            " ones, or all wait for their GPUs and NCCL's RAS counts fewer operations of some: one has skipped an"
            " operation, or taken another branch. Which one is a guess between two.",
            _RESTART + "; if it comes again, report the places that are named to the engine's project",
            "vllm-project/vllm#48720; Blackwellboy/model-serving-minefield#89",
        ),
        HangKind(
            "HANG-GRAPH-NCCL",
            "all ranks stand in the replay of a CUDA graph whose collectives cross nodes",
            "Seen with NCCL 2.28 between nodes, while the same collectives without a graph went on.",
            "start it without CUDA graphs (`-- --disable-cuda-graph` behind `up` for SGLang, `-- --enforce-eager` for"
            " vLLM), or with a stack that has another NCCL",
            "vllm-project/vllm#52504",
        ),
        HangKind(
            "HANG-IB-RESILIENCY",
            "all ranks wait for NCCL, over RoCE and after hours of load, with an NCCL that is known to stop so",
            "Completions of a receiver land on slots that its code for port failover counts as unused, and nobody waits"
            " for them. Counters of the ports stand still. No version is known to be free of it.",
            _RESTART + "; it comes back after hours of load. Leave `l40s_port_failover` off",
            "NVIDIA/nccl#2334",
        ),
        HangKind(
            "HANG-NETREG",
            "all ranks wait for NCCL, with buffers registered for the network and an NCCL that is known to stop so",
            "GPUs are fully used, no counter of a port moves, no line is logged.",
            "set NCCL_GRAPH_REGISTER=0 and NCCL_LOCAL_REGISTER=0 in `l40s_env`, and plan it again with `up`",
            "NVIDIA/nccl#2389",
        ),
        HangKind(
            "HANG-FABRIC",
            "all ranks wait for data of another node",
            "Ports of the gang are down, repeat what they send, or move data slowly: counters, read twice. A guard does"
            " not restart while data moves.",
            "check the ports that are named, their cables and their switch: `l40s-deploy doctor`, and once the gang is"
            " down `l40s-deploy nettest`",
            "Linux ABI, sysfs-class-infiniband; NVIDIA, hw_counters",
        ),
        HangKind(
            "HANG-P2P",
            "all ranks wait for NCCL, and PCIe diverts what GPUs send each other",
            "ACS redirects peer-to-peer traffic, or an IOMMU translates it: both can stop or corrupt it without an"
            " error.",
            "run `l40s-deploy doctor` and mend ACS-REDIRECT or IOMMU-TRANSLATING; NCCL_P2P_DISABLE=1 in `l40s_env`"
            " avoids that path",
            "NVIDIA/nccl#2079; NCCL troubleshooting guide, ACS",
        ),
        HangKind(
            "HANG-UNKNOWN",
            "the engine stands still, and what was read fits no known hang",
            "What was seen is among the evidence, and what could not be read.",
            "keep it with `l40s-deploy support-bundle`, then " + _RESTART,
            "gang/hangs.py",
        ),
    )
}
