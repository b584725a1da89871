"""What an operator may pin when asking for a plan, and the facts that are no topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of one node that are no hardware; each is None where it was not read.

    user:      who the SSH session runs as (after become)
    home:      that user's home directory
    cpu_count: CPUs that a process there may use
    glibc:     version of the C library, as 2.36
    engine:    whether the stack's virtual environment is there
    engine_python: version of its interpreter, as 3.11.2
    vocabularies: whether `prepare` has put tokenizers' vocabularies beside it
    config:    the checkpoint's config.json
    config_error: why config.json could not be read, an errno's name; '' where nobody asked
    """

    user: str | None = None
    home: str | None = None
    cpu_count: int | None = None
    glibc: str | None = None
    engine: bool | None = None
    engine_python: str | None = None
    vocabularies: bool | None = None
    config: Mapping[str, Any] | None = None
    config_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Pinned degrees (None lets the profile or the number of GPUs decide) and extra engine flags.

    layout: name of one of the profile's layouts, '' for none
    adapt: where nothing is pinned and the usual layout does not fit these nodes, one that does (planning.adapt)
    debug: NCCL says at start which transport it took (NCCL_DEBUG=INFO)
    api_keys: fingerprint of the API key, by name of the gangs that ask for one
    """

    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    attention_data_parallel: int | None = None
    layout: str = ""
    adapt: bool = False
    extra_args: tuple[str, ...] = ()
    debug: bool = True
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Somebody chose a degree."""
        degrees = (self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.attention_data_parallel)
        return any(degree is not None for degree in degrees)
