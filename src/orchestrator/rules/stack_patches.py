"""Code that a stack must have for Ada GPUs, where it can be read from the engine's files."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.gpu_facts import facts_of
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.installed import Installed, installed
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="STACK-PATCHES",
    title="the installed engine lacks the stack's patches for this GPU",
    explain=(
        "A stack's file lists files of the engine and a text that each must contain (`evidence`). Without the SM89"
        " tiles, attention requests more shared memory than the GPU has. In compiled files (.so) the bytes are searched"
        " for part of a mangled name: sgl-kernel without sm89_dispatch_shape has no int8 GEMM for SM89. Only INT8"
        " checkpoints need it; where `up` knows the model, others are not affected. Applies to GPUs of compute"
        " capability 8.9 only."
    ),
    reads=("files of the engine that inventory/stacks/*.yml names under `evidence`",),
    source="sglang PR 4418; CUDA C++ Programming Guide: 99 KB of shared memory a block on compute capability 8.9",
    weight=9,
)

_ADA = 89
COMPILED = ".so"
"""End of the names of evidence files whose bytes are searched."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node and file."""
    for node in cluster.nodes:
        stack, found = cluster.stacks.get(node.name), installed(node)
        if stack is None or found is None or not found.root or not _is_ada(node):
            continue
        for file, text in stack.evidence:
            if file.endswith(COMPILED):
                yield from _compiled(node, found, stack.name, file, text, _is_int8(cluster, node))
            else:
                yield from _judged(node, found, stack.name, file, text)


def _is_int8(cluster: Cluster, node: Node) -> bool | None:
    """Whether the planned model needs int8 kernels; None where no model is planned."""
    served = cluster.served.get(node.spec.gang)
    return None if served is None else served[0].quantisation == "int8-channel"


def _is_ada(node: Node) -> bool:
    """By compute capability: NVML's word, else the model's."""
    return any((gpu.sm or (known.sm if (known := facts_of(gpu.name)) else 0)) == _ADA for gpu in node.topology.gpus)


def _judged(node: Node, found: Installed, stack: str, file: str, text: str) -> Iterator[Finding]:
    path = f"{found.root}/{file}"
    content = node.snapshot.text(path)
    if text in content:
        return
    unread = not content
    yield Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN if unread else Severity.STOP,
        node=node.name,
        devices=(file,),
        title=f"the engine's sources can't be read to check for the SM89 tiles of {stack}" if unread
        else f"the engine lacks the SM89 tiles of {stack}",
        evidence=(f"{path}: {'not readable' if unread else f'no {text!r}'}",),
        effect="attention requests more than this GPU's 101376 bytes of shared memory: OutOfResources at the first"
               " long prompt",
        fix=f"install {stack} as its file describes; the stock wheel of the same version does not have the patches",
    )  # fmt: skip


def _compiled(node: Node, found: Installed, stack: str, file: str, text: str, int8: bool | None) -> Iterator[Finding]:
    path = f"{found.root}/{file}"
    content = node.snapshot.text(path)
    if text in content or int8 is False:
        return
    unread = not content
    yield Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN if unread else Severity.STOP if int8 else Severity.NOTE,
        node=node.name,
        devices=(file,),
        title=f"the kernels can't be read to check for the int8 GEMM of {stack}" if unread
        else f"the kernels lack the int8 GEMM for SM89 of {stack}",
        evidence=(f"{path}: {'not readable' if unread else f'{content}: {text}'}",),
        effect="INT8 checkpoints can't be served (no int8_scaled_mm for this compute capability); others can",
        fix=f"install {stack} as its file describes, with its version of the kernels' package",
    )  # fmt: skip
