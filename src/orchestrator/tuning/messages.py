"""Tuning of an engine's kernels: the controller's order for a node, and its tuners' messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.jobs.messages import JobLine
from orchestrator.protocol.message import Message, schema

Tile = Mapping[str, int]
"""One config as an engine's file has it: BLOCK_SIZE_M, ..., num_stages."""


@schema(frozen=True, slots=True, kw_only=True)
class KernelShape(Message):
    """Of a GEMM, at one batch size.

    kernel:  moe or linear (block-scaled Triton GEMMs)
    e, n, k: experts, an expert's width and the hidden size; 0, rows and columns of a linear layer's weight
    top_k:   experts a token goes to; 0 for a linear layer
    fused:   the last expert is a shared one: every token goes to it
    dtype:   as file names have it, '' for bf16; channel: scales are per channel
    block:   the quantisation block (n, k), (0, 0) for none
    batch:   tokens
    """

    kernel: str
    e: int = 0
    n: int = 0
    k: int = 0
    top_k: int = 0
    fused: bool = False
    dtype: str = ""
    block: tuple[int, int] = (0, 0)
    channel: bool = False
    batch: int = 0


@schema(frozen=True, slots=True, kw_only=True)
class TuneJob(KernelShape):
    """One shape that is tuned. space: the candidates' name in the order"""

    id: str
    space: str


@schema(frozen=True, slots=True, kw_only=True)
class TunersOrder(Message):
    """What templates/tune.py reads. gpus: so many tuners, one a GPU, take the jobs in their order"""

    device: str
    gpus: int
    spaces: Mapping[str, tuple[Mapping[str, int], ...]]
    jobs: tuple[TuneJob, ...]


@schema(frozen=True, slots=True, kw_only=True)
class TuneLine(JobLine):
    """One line of a node.

    begun, trying: a job's id; tried of `of` candidates so far
    job:     one that is done, with its config and microseconds, and those of what the engine takes today (0: wrong or
             does not run); error: of the product, of its norm; kept: what the engine takes today is as fast
    ran, wrong: candidates that ran, and fast ones whose product was wrong; unfit: of the others, by exception
    failed:  a job that failed, or '' with `what` for a tuner
    """

    started: Mapping[str, int] = field(default_factory=dict)
    begun: str = ""
    trying: str = ""
    tried: int = 0
    of: int = 0
    job: str = ""
    gpu: int = -1
    config: Mapping[str, int] = field(default_factory=dict)
    us: float = 0.0
    before_us: float = 0.0
    error: float = 0.0
    ran: int = 0
    wrong: int = 0
    unfit: Mapping[str, int] = field(default_factory=dict)
    kept: bool = False
    failed: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class KernelCase(KernelShape):
    """One kernel that is checked. name: in messages

    kernel: also channel (scaled per channel), extend or decode (Triton's attention), absorb (of each head), triton (the
            check's own); another word: nobody can call it
    heads, kv_heads, qk, v: of attention on one GPU, and the sizes of a head; cached: behind a cached prefix
    built_in: by the engine's own tiles, whatever file there is
    """

    id: int
    name: str
    heads: int = 0
    kv_heads: int = 0
    qk: int = 0
    v: int = 0
    cached: bool = False
    built_in: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class KernelsOrder(Message):
    """What templates/kernels.py reads.

    sm:     compute capability that the plan is for, 0 where nobody knows; shared: bytes that a block may have there
    case_s: for one kernel, compilation included
    """

    device: str
    sm: int
    shared: int
    case_s: float
    cases: tuple[KernelCase, ...]


@schema(frozen=True, slots=True, kw_only=True)
class KernelLine(JobLine):
    """One line of a node, about the kernel of this id.

    verdict: right, wrong, fails or not-run; '' for more about one that has a verdict
    error:   of the product, of its norm, -1 where it is no number; us: microseconds, 0 where not timed
    text:    what it said, or why it was not run; shared: bytes of shared memory, compiled for the plan's GPU
    """

    kernel: int = -1
    verdict: str = ""
    error: float = 0.0
    us: float = 0.0
    text: str = ""
    shared: int = 0
