"""Tuned kernel configs: the same on every node, usable, and there for the model that is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.doctor.rules.stacks import held, installed
from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow
from orchestrator.engines.engine import Lookup
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_validity import Holding, State, digest, flaws, judged, read_name
from orchestrator.engines.tuned_wanted import Wanted, wanted_files
from orchestrator.model.finding import Finding, Severity
from orchestrator.protocol.looks import Holdings


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
    yield from _differences(cluster, {name: found for name, (_, found) in holdings.items()})
    for node in cluster.nodes:
        if node.name in holdings:
            rules, found = holdings[node.name]
            planned = _planned(node, rules, found)
            yield from _unusable(node, found, {row.name for _, row in planned})
            yield from _missing(node, planned)


def _held(node: Node) -> tuple[Lookup, Holdings] | None:
    stack, found = node.stack, installed(node)
    if stack is None or found is None or not found.root or stack.device != "cuda":
        return None
    rules = engine_of(stack).tuned
    directory = _directory(node, rules)
    folders = tuple(f"{folder}/" for folder in (found.root, directory) if folder)
    if any(path.startswith(folders) and node.snapshot.unread(path) for path in node.snapshot.errors):
        return None
    return rules, held(node, found, rules, directory)


def _directory(node: Node, rules: Lookup) -> str:
    env = dict(node.stack.env if node.stack else ()) | dict(node.spec.overrides.env)
    return env.get(rules.variable, "") if rules.variable else ""


def _differences(cluster: Cluster, holdings: Mapping[str, Holdings]) -> Iterator[Finding]:
    """One finding for each odd node, and one where no value has a majority; what no node has is not a difference."""
    files = sorted({(folder, name) for found in holdings.values() for folder, texts in found.folders.items()
                    for name in texts})  # fmt: skip
    odd: dict[str, list[tuple[str, str]]] = {}
    for folder, name in files:
        for values, common in cluster.differing(lambda node: _print(holdings.get(node.name), folder, name)):  # noqa: B023
            if common is None:
                each = "; ".join(f"{where} {value}" for where, value in values.items())
                odd.setdefault("", []).append((name, f"{folder}/{name}: {each}"))
                continue
            for where, value in values.items():
                said = f"{folder}/{name} = {value}, on the other nodes {common}"
                odd.setdefault(where, []).append((name, said))
    yield from (_odd(node, differing) for node, differing in odd.items())


def _print(found: Holdings | None, folder: str, name: str) -> str | None:
    """The beginning of a file's SHA-256, or that it is missing."""
    if found is None:
        return None
    text = found.folders.get(folder, {}).get(name)
    return "missing" if text is None else digest(text)[:12]


def _odd(node: str, differing: list[tuple[str, str]]) -> Finding:
    count = f"{len(differing)} tuned config{'s' * (len(differing) != 1)}"
    return slow(
        f"{count} from the other nodes" if node else f"the nodes differ in {count}",
        *(said for _, said in differing),
        effect="not measured: every step of the gang waits for the node with the slower tiles",
        fix="copy them from a node that has the right ones: `l40s-deploy tuning pull --from NODE`, then"
        " `l40s-deploy tuning push`",
        devices=tuple(name for name, _ in differing),
        node=node,
    )


def _planned(node: Node, rules: Lookup, found: Holdings) -> list[tuple[Wanted, Holding]]:
    """What the planned model looks for here, and what it takes; nothing where no model is planned."""
    names = {gpu.name for gpu in node.topology.gpus if gpu.name}
    if node.served is None or node.stack is None or len(names) != 1:
        return []
    wanted = wanted_files(
        *node.served,
        rules,
        gpu=names.pop(),
        triton=found.versions.get("triton", node.stack.triton_version),
        moe_directory=_directory(node, rules),
    )
    return [(one, judged(one, rules, found)) for one in wanted]


def _unusable(node: Node, found: Holdings, taken: set[str]) -> Iterator[Finding]:
    for folder, texts in found.folders.items():
        for name, text in texts.items():
            for flaw in flaws(name, text) if read_name(name) else ():  # what no engine looks for harms none
                if flaw.severity is Severity.STOP:
                    yield finding(
                        Severity.STOP if name in taken else Severity.SLOW,
                        f"the tuned config {name} can't be used",
                        f"{folder}/{name}: {flaw.text}",
                        effect="an engine that uses it fails, or generates wrong text",
                        fix="if it was pushed, run `l40s-deploy tuning push --remove`; otherwise"
                        " `l40s-deploy tuning run --model NAME FILE` makes one that a push puts in its place",
                        devices=(name,),
                        node=node.name,
                    )


def _missing(node: Node, planned: list[tuple[Wanted, Holding]]) -> Iterator[Finding]:
    missing = [one for one, row in planned if row.state is State.DEFAULT and not one.optional]
    needed = [one for one, _ in planned if not one.optional]
    if missing:
        yield note(
            f"{len(missing)} of the {len(needed)} tuned configs for this model are missing",
            *(f"{one.folder}/{one.name}" for one in missing),
            effect="these kernels run with the engine's default tiles; the cost is not measured",
            fix="list them with `l40s-deploy tuning status --model NAME`; docs/tuning.md describes how to make and"
            " install them",
            node=node.name,
        )
