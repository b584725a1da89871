"""The engine's environment as the probe read it: there on each node, the same everywhere, the stack's, and patched; and
its tuned kernel configs: the same, usable, and there for the model that is planned."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, unknown
from orchestrator.engines.engine import Lookup, moe_root
from orchestrator.engines.registry import UNLISTED, dialects, engine_of, unlisted
from orchestrator.engines.tuned_validity import Holding, State, digest, flaws, judged, read_name
from orchestrator.engines.tuned_wanted import Wanted, wanted_files
from orchestrator.model import packages
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.profile import Stack
from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.words import counted
from orchestrator.protocol.looks import Holdings
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.versions import release
from orchestrator.topology.gpus import capability


@Rule(
    id=UNLISTED,
    title="the engine's version is not listed by its dialect",
    explain=(
        "Flags, health paths, log lines and tuned config folders change between versions of SGLang. A dialect lists"
        " the versions whose wheels were read. Another version is treated as the nearest of them, which may be wrong."
        " `up` continues."
    ),
    reads=("the stack's engine_version and dialect",),
    source="scripts/engine_facts.py, over the wheels of every listed version",
    weight=60,
).of_node
def engine_unlisted(node: Node) -> Iterator[Finding]:
    """One finding where the stack is such a one."""
    if node.stack is not None and node.stack.dialect in dialects() and (unlisted_engine := unlisted(node.stack)):
        yield unlisted_engine


@Rule(
    id="STACK-ABSENT",
    title="the stack is not installed",
    explain=(
        "Checks for python3 in the virtual environment of the node's stack (l40s_venv, else /opt/l40s/venvs/STACK)."
        " This is normal on hosts that are not prepared yet: it is a note, and the stack is not checked further."
    ),
    reads=("VENV/bin/python3", "VENV/lib/python3*/site-packages/*.dist-info"),
    source="the plan starts VENV/bin/python3 -m sglang.launch_server",
    weight=70,
).of_node
def stack_absent(node: Node) -> Iterator[Finding]:
    """One note; nodes that say the same are shown together."""
    engine, stack = installed(node), node.stack
    if engine is not None and not engine.there:
        name = f"the stack {stack.name}" if stack else "a stack"
        yield note(
            f"{name} is not installed: there is no python3 in {engine.venv}",
            f"{engine.venv}/bin/python3 does not exist",
            effect="`up` refuses to start until it is installed",
            fix=f"l40s-deploy prepare{f' --stack {stack.name}' if stack else ''}, or name its place with l40s_venv",
            devices=(engine.venv,),
        )


@Rule(
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
).of_cluster
def stack_differs(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each kind and odd node; one `unknown` for nodes whose environment can't be read."""
    seen = {node.name: engine for node in cluster.nodes if (engine := installed(node)) and engine.there}
    for kind in _KINDS:
        yield from _between_nodes(cluster, kind, seen)
        yield from _against_the_stack(cluster, kind, seen)
    for name, engine in seen.items():
        if not engine.versions:
            yield unknown(
                "the installed packages can't be read",
                f"no *.dist-info of {', '.join(packages.ALL[:2])} below {engine.venv}/lib",
                effect="it is not known whether the nodes have the same engine",
                fix="install the stack with `l40s-deploy prepare`, or let the SSH user read the environment",
                devices=(engine.venv,),
                node=name,
            )


class _SoftwareKind(NamedTuple):
    """words: what an operator calls it; names: packages that are it; demand: what a stack's file says of it."""

    words: str
    names: tuple[str, ...]
    severity: Severity
    effect: str
    demand: Callable[[Stack], str]
    refused: bool = False
    """Whether `up` refuses a node with another release than the stack's (node/agent/preflight.py)."""


_KINDS = (
    _SoftwareKind("engine (sglang)", packages.ENGINE, Severity.STOP,
          "ranks of different versions may not understand each other's messages; `up` refuses versions that are not"
          " the stack's",
          lambda stack: stack.engine_version, refused=True),
    _SoftwareKind("torch", packages.TORCH, Severity.STOP,
          "torch determines the NCCL and CUDA versions: different ranks may not find each other; `up` refuses"
          " versions that are not the stack's", lambda stack: stack.torch_version, refused=True),
    _SoftwareKind("NCCL", packages.NCCL, Severity.STOP,
          "NCCL fails at start if ranks have different versions", lambda stack: stack.nccl_version),
    _SoftwareKind("kernels (sglang-kernel, sgl-kernel)", packages.KERNELS, Severity.SLOW,
          "not measured: ranks use different kernels, and all wait for the slowest", lambda _: ""),
    _SoftwareKind("Triton", packages.TRITON, Severity.SLOW,
          "not measured: tuned configs depend on its version, so nodes run different tiles",
          lambda stack: stack.triton_version),
)  # fmt: skip


def _between_nodes(cluster: Cluster, kind: _SoftwareKind, seen: Mapping[str, Installed]) -> Iterator[Finding]:
    def version(node: Node) -> str | None:
        return _version(seen[node.name], kind) if node.name in seen else None

    for name, values, common in cluster.differing(version):
        each = "; ".join(f"{node_name} {value}" for node_name, value in values.items())
        title = f"{kind.words} is {values[name]}, on the other nodes {common}" if name else ""
        title = title or f"the nodes differ in {kind.words}: {each}"
        yield _differs(kind, name, title, seen[name or next(iter(values))], kind.severity)


def _against_the_stack(cluster: Cluster, kind: _SoftwareKind, seen: Mapping[str, Installed]) -> Iterator[Finding]:
    for name, engine in seen.items():
        stack, version = cluster.stacks.get(name), _version(engine, kind)
        wanted = kind.demand(stack) if stack else ""
        if stack and version and wanted and release(version) != release(wanted):
            title = f"{kind.words} is {version}, but the stack {stack.name} has {wanted}"
            yield _differs(kind, name, title, engine, Severity.STOP if kind.refused else Severity.NOTE)


def _version(engine: Installed, kind: _SoftwareKind) -> str | None:
    return next((engine.versions[name] for name in kind.names if name in engine.versions), None)


def _differs(kind: _SoftwareKind, node: str, title: str, engine: Installed, severity: Severity) -> Finding:
    there = [
        f"{engine.venv}: {name}-{engine.versions[name]}.dist-info" for name in kind.names if name in engine.versions
    ]
    return finding(
        severity,
        title,
        *(there or [engine.venv]),
        effect="not measured: the plan is based on the stack's version" if severity is Severity.NOTE else kind.effect,
        fix="install the stack's packages with `l40s-deploy prepare`, or choose the installed stack with --stack",
        devices=(kind.words,),
        node=node,
    )


@Rule(
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
).of_node
def stack_patches(node: Node) -> Iterator[Finding]:
    """One finding for each file that lacks its patch, or can't be read."""
    engine = installed(node)
    if node.stack and engine and engine.root and any(capability(gpu) == _ADA for gpu in node.topology.gpus):
        for file, text in node.stack.evidence:
            yield from _patched(node, node.stack.name, engine.root, file, text)


def _patched(node: Node, stack: str, root: str, file: str, text: str) -> Iterator[Finding]:
    content, compiled = node.snapshot.text(f"{root}/{file}"), file.endswith(COMPILED)
    int8 = node.served[0].quantisation == "int8-channel" if node.served else None
    if text in content or (compiled and int8 is False):
        return
    what, lacks, effect, fix = _COMPILED if compiled else _SOURCES
    severity = Severity.STOP if int8 or not compiled else Severity.NOTE
    read = f"{content}: {text}" if compiled else f"no {text!r}"
    yield finding(
        severity if content else Severity.UNKNOWN,
        f"{lacks} of {stack}" if content else f"{what} of {stack}",
        f"{root}/{file}: {read if content else 'not readable'}",
        effect=effect,
        fix=f"install {stack} as its file describes{fix}",
        devices=(file,),
    )


_ADA = 89
COMPILED = ".so"
"""End of the names of evidence files whose bytes are searched."""
_SOURCES = (
    "the engine's sources can't be read to check for the SM89 tiles",
    "the engine lacks the SM89 tiles",
    "attention requests more than this GPU's 101376 bytes of shared memory: OutOfResources at the first long prompt",
    "; the stock wheel of the same version does not have the patches; check it with `stack check --model`",
)
"""What is said where a file can't be read, where it lacks its patch, what that costs and the fix."""
_COMPILED = (
    "the kernels can't be read to check for the int8 GEMM",
    "the kernels lack the int8 GEMM for SM89",
    "INT8 checkpoints can't be served (no int8_scaled_mm for this compute capability); others can",
    ", with its version of the kernels' package; check it with `stack check --model`",
)
"""The same of a compiled file; INT8 checkpoints alone need it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """venv: what was looked at; there: its python3 exists, or that could not be read; versions: by normalised package;
    root: where the package sglang is, or ''"""

    venv: str
    there: bool
    versions: Mapping[str, str]
    root: str


def installed(node: Node) -> Installed | None:
    """None where nobody asked: the inventory names neither a stack nor an environment, or an older look."""
    snapshot = node.snapshot
    asked = part(snapshot.host, "stack")
    venv = asked.get("venv")
    if not isinstance(venv, str) or not venv:
        return None
    sites = [f"{venv}/lib/{name}/site-packages" for name in snapshot.names(f"{venv}/lib") if name.startswith("python3")]
    versions = {package: version for site in sites for package, version in _versions(snapshot, site)}
    roots = [root for site in sites for root in (site, *_named_by_pth(snapshot, site))]
    root = next((root for root in roots if snapshot.exists(f"{root}/sglang/__init__.py")), "")
    return Installed(venv, asked.get("python") is not False or bool(versions), versions, root)


def _versions(snapshot: Snapshot, site: str) -> Iterator[tuple[str, str]]:
    for name in snapshot.names(site):
        if name.endswith(".dist-info"):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            yield re.sub(r"[-_.]+", "-", package).lower(), version


def _named_by_pth(snapshot: Snapshot, site: str) -> Iterator[str]:
    for name in snapshot.names(site):
        if name.endswith(".pth"):
            yield from (line.strip() for line in snapshot.text(f"{site}/{name}").splitlines() if line.startswith("/"))


@Rule(
    id="TUNED-CONFIGS",
    title="tuned kernel configs differ, can't be used, or are missing",
    explain=(
        "Compares the tuned configs for this GPU between nodes and checks each (tiles that give wrong text, tiles"
        " that do not fit). `up` knows the model and layout, so it also reports which files the engine will look for"
        " and not find. docs/tuning.md has the rules."
    ),
    reads=("E=*.json and N=*.json for this GPU below the engine's config folders", "triton-*.dist-info"),
    source="sglang fused_moe_triton_config.get_moe_configs, fp8_kernel.get_w8a8_block_fp8_configs; sglang issue 39626",
    weight=30,
).of_cluster
def tuned_configs(cluster: Cluster) -> Iterator[Finding]:
    """Differences between nodes, unusable files, and what the planned model misses."""
    holdings = {node.name: known for node in cluster.nodes if (known := _held(node))}
    plans = {node.name: _planned(node, *holdings[node.name]) for node in cluster.nodes if node.name in holdings}
    yield from _differences(cluster, {name: held for name, (_, held) in holdings.items()}, _read_by(plans))
    for node in cluster.nodes:
        if node.name in holdings:
            planned = plans[node.name]
            yield from _unusable(node, holdings[node.name][1], {row.name for _, row in planned}, planned=bool(planned))
            yield from _missing(node, planned)


def _read_by(plans: Mapping[str, Sequence[tuple[Wanted, Holding]]]) -> frozenset[str] | None:
    """Names of the files that the planned models look for, or end at; None where a node has no plan: then an engine may
    read any of them."""
    if not all(plans.values()):
        return None
    read = [(wanted.name, row.name) for planned in plans.values() for wanted, row in planned]
    return frozenset(chain.from_iterable(read))


def _held(node: Node) -> tuple[Lookup, Holdings] | None:
    """What a node's engine looks configs up by, and those that it has, as `tuning status` reads them from a node."""
    stack, engine = node.stack, installed(node)
    if stack is None or engine is None or not engine.root or stack.device != "cuda":
        return None
    rules, snapshot = engine_of(stack).tuned, node.snapshot
    directory = _directory(node, rules)
    above = tuple(f"{folder}/" for folder in (engine.root, directory) if folder)
    if any(path.startswith(above) and snapshot.unread(path) for path in snapshot.errors):
        return None
    folders = _config_folders(snapshot, engine.root, rules, moe_root(rules, directory))
    texts = {folder: there for folder in folders if (there := _configs(snapshot, posixpath.join(engine.root, folder)))}
    return rules, Holdings(root=engine.root, versions=engine.versions, folders=texts)


def _config_folders(snapshot: Snapshot, engine_root: str, rules: Lookup, root: str) -> list[str]:
    """Those that the engine may read configs of, below its own root or absolute. root: of the MoE kernels' ones"""
    names = snapshot.names(posixpath.join(engine_root, root)) if rules.by_triton else ()
    return [rules.linear, root, *(f"{root}/{name}" for name in names if name.startswith("triton_"))]


def _configs(snapshot: Snapshot, folder: str) -> dict[str, str]:
    """{name: text} of a folder's JSON files."""
    paths = {name: f"{snapshot.realpath(folder)}/{name}" for name in snapshot.names(folder) if name.endswith(".json")}
    return {name: snapshot.files[path] for name, path in paths.items() if path in snapshot.files}


def _directory(node: Node, rules: Lookup) -> str:
    env = dict(node.stack.env if node.stack else ()) | dict(node.spec.overrides.env)
    return env.get(rules.variable, "") if rules.variable else ""


def _differences(cluster: Cluster, holdings: Mapping[str, Holdings], read: frozenset[str] | None) -> Iterator[Finding]:
    """One finding for each odd node, and one where no value has a majority; what no node has is not a difference.
    read: names of the files that count, None for all"""

    def digest_of(folder: str, name: str, node: Node) -> str | None:
        """The beginning of a file's SHA-256, or that it is missing."""
        held = holdings.get(node.name)
        if held is None:
            return None
        text = held.folders.get(folder, {}).get(name)
        return "missing" if text is None else digest(text)[:12]

    odd = collected(
        (node, (name, f"{folder}/{name}{_versus(node, values, common)}"))
        for folder, name in _files_of(holdings.values())
        if read is None or name in read
        for node, values, common in cluster.differing(partial(digest_of, folder, name))
    )
    for node, differing in odd.items():
        count = counted(len(differing), "tuned config")
        yield slow(
            f"{count} from the other nodes" if node else f"the nodes differ in {count}",
            *(words for _, words in differing),
            effect="not measured: every step of the gang waits for the node with the slower tiles",
            fix="copy them from a node that has the right ones:"
            " `tuning pull --from` that node makes a pack, `tuning push` installs it",
            devices=tuple(name for name, _ in differing),
            node=node,
        )


def _files_of(holdings: Iterable[Holdings]) -> list[tuple[str, str]]:
    """Folder and name of every config that a node has, in order."""
    folders = [item for holding in holdings for item in holding.folders.items()]
    return sorted({(folder, name) for folder, texts in folders for name in texts})


def _versus(node: str, values: Mapping[str, str], common: str | None) -> str:
    if node:
        return f" = {values[node]}, on the other nodes {common}"
    return ": " + "; ".join(f"{where} {value}" for where, value in values.items())


def _planned(node: Node, rules: Lookup, held: Holdings) -> list[tuple[Wanted, Holding]]:
    """What the planned model looks for here, and what it takes; nothing where no model is planned."""
    names = {gpu.name for gpu in node.topology.gpus if gpu.name}
    if node.served is None or node.stack is None or len(names) != 1:
        return []
    wanted = wanted_files(
        *node.served,
        rules,
        gpu=names.pop(),
        triton=held.versions.get("triton", node.stack.triton_version),
        moe_directory=_directory(node, rules),
    )
    return [(config, judged(config, rules, held)) for config in wanted]


def _unusable(node: Node, held: Holdings, taken: set[str], *, planned: bool) -> Iterator[Finding]:
    """taken: names of the files that a planned model ends at; planned: there is one, which reads no others"""
    for folder, texts in held.folders.items():
        for name, text in texts.items():
            harms_none = (planned and name not in taken) or not read_name(name)
            for flaw in () if harms_none else flaws(name, text):
                if flaw.severity is Severity.STOP:
                    yield finding(
                        Severity.STOP if name in taken else Severity.SLOW,
                        f"the tuned config {name} can't be used",
                        f"{folder}/{name}: {flaw.text}",
                        effect="an engine that uses it fails, or generates wrong text",
                        fix="if it was pushed, run `l40s-deploy tuning push --remove`; otherwise"
                        " `tuning run` makes one that `tuning push` puts in its place",
                        devices=(name,),
                        node=node.name,
                    )


def _missing(node: Node, planned: list[tuple[Wanted, Holding]]) -> Iterator[Finding]:
    missing = [config for config, row in planned if row.state is State.DEFAULT and not config.optional]
    needed = [config for config, _ in planned if not config.optional]
    if missing:
        yield note(
            f"{len(missing)} of the {len(needed)} tuned configs for this model are missing",
            *(f"{config.folder}/{config.name}" for config in missing),
            effect="these kernels run with the engine's default tiles; the cost is not measured",
            fix="list them with `tuning status --model`; docs/tuning.md describes how to make and install them",
            node=node.name,
        )
