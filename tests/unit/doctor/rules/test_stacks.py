"""Findings about installed stacks beyond one fault on one node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.healthy_cluster import (
    KERNELS,
    SITE,
    STACK,
    TILES,
    TUNED_PATH,
    VENV,
    HealthyNode,
    cluster_of,
    healthy_nodes,
    tuned,
)

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import grouped, run_rules
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.finding import Finding
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity

FINE = load_profile("DeepSeek-V3-0324-Block64x64")
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)


def found(cluster: Cluster, *ids: str) -> list[Finding]:
    return [finding for finding in run_rules(cluster) if finding.id in ids]


def without_stack(node: HealthyNode) -> None:
    for path in [path for path in node.files if path.startswith(VENV)]:
        del node.files[path]
    node.host["stack"] = {**node.host["stack"], "python": False}


def test_hosts_that_were_not_prepared_yet_say_so_in_one_line() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        without_stack(node)
    findings = run_rules(cluster_of(nodes))
    (only,) = grouped(findings)
    assert len(only.nodes) == 4
    assert only.finding.severity is Severity.NOTE
    assert "l40s-deploy prepare --stack sglang-0.5.23" in only.finding.fix


def test_machines_that_were_looked_at_without_a_stack_say_nothing() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        without_stack(node)
        del node.host["stack"]
    assert run_rules(replace(cluster_of(nodes), stacks={})) == ()


def test_all_nodes_alike_and_not_the_stacks() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        for old, new in (("torch-2.14.1", "torch-2.13.0"), ("triton-3.8.0", "triton-3.7.1")):
            node.files[f"{SITE}/{new}.dist-info/WHEEL"] = node.files.pop(f"{SITE}/{old}.dist-info/WHEEL")
    torch, triton = grouped(found(cluster_of(nodes), "STACK-DIFFERS"))
    assert (torch.finding.severity, len(torch.nodes)) == (Severity.STOP, 4)
    assert torch.finding.title == "torch is 2.13.0, but the stack sglang-0.5.23 has 2.14.1"
    assert (triton.finding.severity, len(triton.nodes)) == (Severity.NOTE, 4)


def test_two_halves_disagree() -> None:
    nodes = healthy_nodes()
    for name in ("node0", "node1"):
        files = nodes[name].files
        files[f"{SITE}/nvidia_nccl_cu13-2.28.9.dist-info/WHEEL"] = files.pop(
            f"{SITE}/nvidia_nccl_cu13-2.30.7.dist-info/WHEEL"
        )
    first, *rest = found(cluster_of(nodes), "STACK-DIFFERS")
    assert (first.severity, first.node) == (Severity.STOP, "")
    assert first.title.startswith("the nodes differ in NCCL: node0 2.28.9; node1 2.28.9; node2 2.30.7")
    assert {finding.severity for finding in rest} == {Severity.NOTE}


def test_another_gpu_needs_no_tiles_for_ada() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        node.files[TILES] = "nothing"
        for gpu in node.gpus:
            gpu["name"] = "NVIDIA H100 80GB HBM3"
    assert not found(cluster_of(nodes), "STACK-PATCHES")


def test_the_articles_stack_wants_its_own_file() -> None:
    stack = load_stack("sglang-0.4.4-l40s")
    (file, text), (kernels, dispatch) = stack.evidence
    nodes = healthy_nodes()
    for node in nodes.values():
        node.files[f"{SITE}/{kernels}"] = dispatch
        node.files[f"{SITE}/{file}"] = "CUDA_CAPABILITY[0] >= 8"
    cluster = replace(cluster_of(nodes), stacks=dict.fromkeys(nodes, stack))
    assert len(found(cluster, "STACK-PATCHES")) == 4
    for node in nodes.values():
        node.files[f"{SITE}/{file}"] = f"if {text}:"
    assert not found(replace(cluster_of(nodes), stacks=dict.fromkeys(nodes, stack)), "STACK-PATCHES")


@pytest.mark.parametrize(
    ("model", "severity"), [("DeepSeek-R1-Channel-INT8", Severity.STOP), (FINE.name, None), (None, Severity.NOTE)]
)
def test_kernels_without_the_int8_gemm_stop_what_needs_it_alone(model: str | None, severity: Severity | None) -> None:
    nodes = healthy_nodes(1)
    nodes["node0"].files[KERNELS] = "12761648 bytes without it"
    cluster = cluster_of(nodes)
    if model:
        cluster = replace(cluster, served={"gang0": (load_profile(model), TP32)})
    findings = found(cluster, "STACK-PATCHES")
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert all("12761648 bytes without it: sm89_dispatch_shape" in finding.evidence[0] for finding in findings)


def test_two_nodes_that_differ_in_two_files_are_told_once() -> None:
    nodes = healthy_nodes(2)
    del nodes["node1"].files[TUNED_PATH]
    nodes["node1"].files[TUNED_PATH.replace("N=2112", "N=768")] = tuned()
    (only,) = found(cluster_of(nodes), "TUNED-CONFIGS")
    assert (only.node, only.severity) == ("", Severity.SLOW)
    assert only.title == "the nodes differ in 2 tuned configs"
    assert "node1 missing" in only.evidence[0]
    assert "node0 missing" in only.evidence[1]


def planned(nodes: dict[str, HealthyNode]) -> Cluster:
    return replace(cluster_of(nodes), served={"gang0": (FINE, TP32)})


def test_what_the_planned_model_misses_is_told_once_with_its_names() -> None:
    (only,) = grouped(found(planned(healthy_nodes()), "TUNED-CONFIGS"))
    assert len(only.nodes) == 4
    assert only.finding.severity is Severity.NOTE
    assert "6 of the 7 tuned configs" in only.finding.title
    assert any("E=257,N=64,device_name=NVIDIA_L40S" in line for line in only.finding.evidence)
    assert not any("N=2112" in line for line in only.finding.evidence)


def test_an_unusable_config_that_the_planned_model_takes_stops_it() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        node.files[TUNED_PATH] = tuned(BLOCK_SIZE_K=128)
    stops = [one for one in found(planned(nodes), "TUNED-CONFIGS") if one.severity is Severity.STOP]
    assert len(stops) == 4
    assert "wrong text" in stops[0].evidence[0]


def test_a_stack_on_cpu_has_no_tuned_configs() -> None:
    nodes = healthy_nodes()
    del nodes["node2"].files[TUNED_PATH]
    cpu = replace(STACK, device="cpu", evidence=())
    assert not found(replace(planned(nodes), stacks=dict.fromkeys(nodes, cpu)), "TUNED-CONFIGS")


def test_files_that_a_plan_does_not_read_are_none_of_its_findings() -> None:
    """Of another shape: on one node alone, unusable, and for a look without a plan a fault as before."""
    nodes = healthy_nodes(2)
    other = TUNED_PATH.replace("N=2112", "N=999")
    nodes["node1"].files[other] = tuned(BLOCK_SIZE_K=128)
    without_a_plan = found(cluster_of(nodes), "TUNED-CONFIGS")
    assert any("N=999" in line for one in without_a_plan for line in one.evidence)
    assert {one.severity for one in found(planned(nodes), "TUNED-CONFIGS")} == {Severity.NOTE}, "what it misses alone"
    del nodes["node1"].files[TUNED_PATH]
    differs = [one for one in found(planned(nodes), "TUNED-CONFIGS") if one.severity is Severity.SLOW]
    assert [one.title for one in differs] == ["the nodes differ in 1 tuned config"]
