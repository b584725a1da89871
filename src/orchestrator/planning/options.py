"""What an operator may pin when asking for a plan, and the facts that are no topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of one node that are no hardware; each is None where it was not read.

    user:      who the SSH session runs as (after become)
    home:      that user's home directory
    cpu_count: CPUs that a process there may use
    """

    user: str | None = None
    home: str | None = None
    cpu_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Pinned degrees (None lets the profile or the number of GPUs decide) and extra engine flags.

    debug: NCCL says at start which transport it took (NCCL_DEBUG=INFO)
    """

    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    extra_args: tuple[str, ...] = ()
    debug: bool = True
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
