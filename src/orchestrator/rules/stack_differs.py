"""Versions of the engine, its kernels and its libraries: the same on every node, and those of the stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.majority import majority
from orchestrator.model.profile import Stack
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.installed import Installed, installed, release
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="STACK-DIFFERS",
    title="the stack's packages differ between nodes, or from the stack's file",
    explain=(
        "Compares the package versions in the stack's virtual environment with the peers', and with the stack's file."
        " They are read from the names of *.dist-info folders; nothing is imported. The comparison with the stack"
        " ignores suffixes (0.4.4.post1 equals 0.4.4); between nodes, complete versions are compared."
    ),
    reads=("VENV/lib/python3*/site-packages/*.dist-info", "inventory/stacks/*.yml"),
    source="NCCL src/init.cc (a version mismatch between ranks is fatal); one engine's ranks run the same code",
    weight=8,
)


@dataclass(frozen=True, slots=True)
class _SoftwareKind:
    """words: what an operator calls it; names: packages that are it; demand: what a stack's file says of it."""

    words: str
    names: tuple[str, ...]
    severity: Severity
    effect: str
    demand: Callable[[Stack], str]
    refused: bool = False
    """Whether `up` refuses a node with another release than the stack's (node/agent/preflight.py)."""


_KINDS = (
    _SoftwareKind("engine (sglang)", ("sglang",), Severity.STOP,
          "ranks of different versions may not understand each other's messages; `up` refuses versions that are not"
          " the stack's",
          lambda stack: stack.engine_version, refused=True),
    _SoftwareKind("torch", ("torch",), Severity.STOP,
          "torch determines the NCCL and CUDA versions: different ranks may not find each other; `up` refuses"
          " versions that are not the stack's", lambda stack: stack.torch_version, refused=True),
    _SoftwareKind("NCCL", ("nvidia-nccl-cu12", "nvidia-nccl-cu13"), Severity.STOP,
          "NCCL fails at start if ranks have different versions", lambda stack: stack.nccl_version),
    _SoftwareKind("kernels (sglang-kernel, sgl-kernel)", ("sglang-kernel", "sgl-kernel"), Severity.SLOW,
          "not measured: ranks use different kernels, and all wait for the slowest", lambda _: ""),
    _SoftwareKind("Triton", ("triton",), Severity.SLOW,
          "not measured: tuned configs depend on its version, so nodes run different tiles",
          lambda stack: stack.triton_version),
)  # fmt: skip

PACKAGES = tuple(name for kind in _KINDS for name in kind.names)
"""What a look must read for this rule."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each kind and odd node; one `unknown` for nodes whose environment can't be read."""
    seen = {node.name: found for node in cluster.nodes if (found := installed(node)) and found.there}
    for kind in _KINDS:
        yield from _between_nodes(cluster, kind, seen)
        yield from _against_the_stack(cluster, kind, seen)
    for name, found in seen.items():
        if not found.versions:
            yield _unreadable(name, found)


def _between_nodes(cluster: Cluster, kind: _SoftwareKind, seen: Mapping[str, Installed]) -> Iterator[Finding]:
    def version(node: Node) -> str | None:
        return _version(seen[node.name], kind) if node.name in seen else None

    for values in cluster.compared(version):
        odd = majority(values)
        if odd:
            for name, value in odd[1].items():
                yield _finding(
                    kind, name, f"{kind.words} is {value}, on the other nodes {odd[0]}", seen[name], kind.severity
                )
        elif len(set(values.values())) > 1:
            each = "; ".join(f"{name} {value}" for name, value in values.items())
            first = next(iter(values))
            yield _finding(kind, "", f"the nodes differ in {kind.words}: {each}", seen[first], kind.severity)


def _against_the_stack(cluster: Cluster, kind: _SoftwareKind, seen: Mapping[str, Installed]) -> Iterator[Finding]:
    for name, found in seen.items():
        stack = cluster.stacks.get(name)
        version, wanted = _version(found, kind), kind.demand(stack) if stack else ""
        if stack and version and wanted and release(version) != release(wanted):
            severity = Severity.STOP if kind.refused else Severity.NOTE
            yield _finding(
                kind, name, f"{kind.words} is {version}, but the stack {stack.name} has {wanted}", found, severity
            )


def _version(found: Installed, kind: _SoftwareKind) -> str | None:
    return next((f"{found.versions[name]}" for name in kind.names if name in found.versions), None)


def _finding(kind: _SoftwareKind, node: str, title: str, found: Installed, severity: Severity) -> Finding:
    there = [f"{name}-{found.versions[name]}.dist-info" for name in kind.names if name in found.versions]
    return Finding(
        id=RULE.id,
        severity=severity,
        node=node,
        devices=(kind.words,),
        title=title,
        evidence=tuple(f"{found.venv}: {name}" for name in there) or (f"{found.venv}",),
        effect=kind.effect
        if severity is not Severity.NOTE
        else "not measured: the plan is based on the stack's version",
        fix="install the stack's packages with `l40s-deploy prepare`, or choose the installed stack with --stack",
    )


def _unreadable(name: str, found: Installed) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=name,
        devices=(found.venv,),
        title="the installed packages can't be read",
        evidence=(f"no *.dist-info of {', '.join(PACKAGES[:2])} below {found.venv}/lib",),
        effect="it is not known whether the nodes have the same engine",
        fix="install the stack with `l40s-deploy prepare`, or let the SSH user read the environment",
    )
