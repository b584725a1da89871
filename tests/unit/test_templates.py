"""Every template under StrictUndefined, with documents of every shape: a name that a shape lacks fails here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.golden.test_plans import CASES, plan_of_case
from tests.support.faults import FAULTS
from tests.support.healthy_cluster import cluster_with
from tests.support.waiting import examples
from tests.unit.bench.steps.test_bench_report import record

from orchestrator.bench.steps.bench_report import bench_html, newest_curves
from orchestrator.bench.steps.bench_report import page_of as bench_of
from orchestrator.doctor.steps.doctor import NcclExpectation, diagnose
from orchestrator.doctor.steps.doctor_report import page_of as report_of
from orchestrator.doctor.steps.doctor_report import pictures, report_html
from orchestrator.engines.serving import ServedModel, Serving, Worker
from orchestrator.gang.history import FailureVerdict, PastRun
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.pace import StartDuration
from orchestrator.gang.paths import Contact
from orchestrator.gang.steps.status.live import GangLoad, Moment, NodeLoad, live_json
from orchestrator.gang.timeline import PortRate, TimelineEvent
from orchestrator.gang.view import OUTSIDE, GangView, NodeView
from orchestrator.golden.gate import GatePart, GateReport
from orchestrator.golden.steps.gate_page import gate_html
from orchestrator.golden.steps.gate_page import page_of as gate_of
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.resources import data_dir, template, templates
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.measured import (
    Candidate,
    CandidateResult,
    CandidateState,
    LoadPoint,
    NetworkTrial,
    SweepLoad,
    SweepRecord,
)
from orchestrator.model.plan import Plan
from orchestrator.model.secret_text import shown
from orchestrator.monitoring.steps.export import prometheus_files
from orchestrator.monitoring.steps.last_hour import Sample
from orchestrator.monitoring.steps.live_page import KeptPast, live_page
from orchestrator.planning.plan_file import SettingChange
from orchestrator.planning.steps.exports import unit
from orchestrator.planning.steps.plan import launch_scripts
from orchestrator.protocol.errors import DeployError, NodeError, RunsElsewhere, Unreachable
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges
from orchestrator.protocol.looks import LabelsAnswer
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.report import Cause, Phase, RailChange, RankReport, RankState
from orchestrator.protocol.severity import Severity
from orchestrator.rendering import compose_file, profile_file, report_page
from orchestrator.sweep.steps.page import page_of as sweep_of
from orchestrator.sweep.steps.page import sweep_html
from orchestrator.topology.distance import Groups

NASTY = "<script>alert(1)</script>"
TEXTS = st.sampled_from(("", "node0", NASTY, "a\x1b[2Jb\n\ud800", "{{ no }} {% such %}", "ü" * 300))
NAMES = st.sampled_from(("node0", "node1", "node2", "node3", "spare0", NASTY))
URLS = st.sampled_from(("", "http://10.0.0.11:8000", "http://10.0.0.11:8000/", "https://[fd00::1]:8000"))
MOMENTS = st.floats(0, 4e9)
COUNTS = st.integers(0, 1 << 40)


def several(of: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=most).map(tuple)


ERRORS = st.builds(
    lambda kind, what: kind(what, where="node1", fix="l40s-deploy status"),
    st.sampled_from((NodeError, Unreachable, RunsElsewhere)),
    TEXTS,
)
CAUSES = st.builds(
    Cause, node=NAMES, tp_rank=st.none() | st.integers(0, 31), text=TEXTS, fix=TEXTS, lines=several(TEXTS), at=MOMENTS
)
RANKS = st.builds(RankReport, tp_rank=st.integers(0, 31), gpu=st.integers(-1, 7), state=st.sampled_from(RankState))
NODES = st.builds(
    NodeView,
    name=NAMES,
    node_rank=st.integers(OUTSIDE, 3),
    state=st.sampled_from(NodeState),
    alive=st.booleans(),
    phase=st.builds(Phase, name=TEXTS, step=st.integers(0, 200), of=st.sampled_from((0, 163)), since=MOMENTS),
    ranks=several(RANKS, 8),
    error=st.none() | ERRORS,
    contact=st.sampled_from(Contact),
    left_behind=several(st.integers(1, 1 << 22)),
    rails=several(st.builds(RailChange, port=TEXTS, up=st.booleans(), at=MOMENTS)),
    spare=st.booleans(),
)
FOUND = st.builds(
    Finding, id=st.just("TRANSPORT-TCP"), severity=st.sampled_from(Severity), node=NAMES, title=TEXTS, effect=TEXTS
)
VIEWS = st.builds(
    GangView,
    name=st.sampled_from(("gang0", "prod-b", NASTY)),
    state=st.sampled_from(GangState),
    run_id=TEXTS,
    plan_id=TEXTS,
    model=TEXTS,
    stack=st.sampled_from(("", "sglang-0.5.23", "vllm-0.33.0")),
    cause=st.none() | CAUSES,
    secondary=several(CAUSES),
    trouble=st.sampled_from(("", "hung", "silent", "nodes")),
    service_url=URLS,
    service_healthy=st.sampled_from((None, True, False)),
    nodes=st.lists(NODES, max_size=4, unique_by=lambda node: node.name).map(tuple),
    transport=several(FOUND),
    missing=several(NAMES, 2),
    spares=several(NODES, 2),
    progress=TEXTS,
    remarks=several(TEXTS),
)
"""No gang at all is in OVERVIEWS; a gang without nodes, lost nodes and spares are here."""
ROUTERS = st.builds(
    RouterGlance,
    url=URLS,
    node=NAMES,
    state=st.none() | st.sampled_from(GangState),
    workers=st.none()
    | several(
        st.builds(
            Worker,
            id=TEXTS,
            url=URLS,
            healthy=st.booleans(),
            load=COUNTS,
            models=several(st.builds(ServedModel, name=TEXTS, aliases=several(TEXTS))),
        )
    ),
    request_limit=st.none() | COUNTS,
    error=st.none() | ERRORS,
)
BEGUN = st.builds(GangOperation, gang=st.just("gang0"), what=st.sampled_from(OperationKind), turning=st.booleans())
OVERVIEWS = st.builds(
    Overview,
    views=st.lists(VIEWS, max_size=3, unique_by=lambda view: view.name).map(tuple),
    router=st.none() | ROUTERS,
    interrupted=several(BEGUN, 1),
)
GPUS = st.builds(
    GpuGauges,
    index=st.integers(0, 7),
    temperature_c=st.none() | st.integers(0, 120),
    power_mw=st.none() | st.integers(0, 400_000),
    clocks_event_reasons=st.none() | st.sampled_from((0, 0x40, 0xFF)),
    error=TEXTS,
)
PORTS = st.builds(
    PortRate,
    device=st.sampled_from(("mlx5_0", "mlx5_bond_0", NASTY)),
    port=st.integers(1, 2),
    up=st.sampled_from((None, True, False)),
    received_bytes_s=st.none() | st.floats(0, 1e11),
    sent_bytes_s=st.none() | st.floats(0, 1e11),
    grown=st.dictionaries(TEXTS, COUNTS, max_size=2),
)
LOADS = st.builds(
    NodeLoad,
    gauges=st.none() | st.builds(GaugesAnswer, now=MOMENTS, gpus=several(GPUS, 8), error=TEXTS),
    ports=several(PORTS, 4),
    failure=st.none() | ERRORS,
)
"""Without NVML, without ports, bonds, and of a node that did not answer."""
BUSY = st.builds(
    GangLoad,
    now=st.builds(Serving, running=COUNTS, queued=COUNTS, prompt_tokens=MOMENTS, generation_tokens=MOMENTS),
    tokens_s=st.none() | st.floats(0, 1e6),
)
EVENTS = several(st.builds(TimelineEvent, at=MOMENTS, node=NAMES, what=TEXTS, words=TEXTS), 20)
OVER_GANGS = st.sampled_from(("gang0", "prod-b"))
LOOKS = st.builds(
    Moment,
    taken_at=MOMENTS,
    seen=OVERVIEWS,
    nodes=st.dictionaries(NAMES, LOADS, max_size=5),
    gangs=st.dictionaries(OVER_GANGS, BUSY, max_size=2),
    events=st.dictionaries(OVER_GANGS, EVENTS, max_size=2),
)
RUNS = st.builds(
    PastRun,
    gang=OVER_GANGS,
    run_id=TEXTS,
    plan_id=TEXTS,
    model=TEXTS,
    started=MOMENTS,
    ended=st.just(0.0) | MOMENTS,
    by=TEXTS,
    command=TEXTS,
    end=st.sampled_from(("failed", "stopped", "ready")),
    cause=st.none() | CAUSES,
    start=st.none() | st.builds(StartDuration, seconds=st.floats(0, 1e5), phases=st.just({"weights": 1.0})),
)
VERDICTS = st.builds(
    FailureVerdict,
    gang=OVER_GANGS,
    run_id=TEXTS,
    plan_id=TEXTS,
    model=TEXTS,
    stack=TEXTS,
    cause=CAUSES,
    secondary=several(CAUSES),
    ago_s=st.none() | MOMENTS,
    newest=st.booleans(),
)
CURVES = st.sampled_from((None, {}, newest_curves([record()]), newest_curves([record(4, stand_in=True), record(8)])))
FIGURES = st.none() | st.floats(0, 1e12)
SAMPLES = several(st.builds(Sample, at=MOMENTS, tokens_s=FIGURES, queued=FIGURES, least_free=FIGURES), 20)
PAST = st.builds(
    KeptPast,
    runs=several(RUNS, 25),
    verdicts=st.dictionaries(OVER_GANGS, VERDICTS),
    bench=CURVES,
    hours=st.dictionaries(OVER_GANGS, SAMPLES, max_size=2),
)


@cache
def examined(number: int) -> Any:
    """What `doctor` draws of a cluster with this fault."""
    return pictures(diagnose(cluster_with("node2", FAULTS[number].breaks), {}))


DRAWINGS = st.none() | st.integers(0, 5).map(examined)
often = settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))


def escaped(page: str) -> None:
    assert NASTY not in page and "{{" not in page.replace("{{ no }}", "") and "\x1b" not in page


@often
@given(moment=LOOKS, past=PAST, drawings=DRAWINGS, error=TEXTS)
def test_the_live_page(moment: Moment, past: KeptPast, drawings: Any, error: str) -> None:
    names = live_page(moment, past, drawings, error).names()
    part = report_page(names, templates("node_drawing.html.j2", "curves.html.j2", "live_part.html.j2"), "")
    escaped(part)
    assert 'id="clock"' in part and part.count('id="gang-') == len(moment.seen.views)
    assert ('id="router"' in part) == (moment.seen.router is not None)
    json.dumps(live_json(moment))
    shell = report_page({"version": "v", "nonce": "n", "part": ""}, template("live.html.j2"), "body {}")
    assert "<!DOCTYPE html>" in shell


LABELS = st.builds(
    LabelsAnswer,
    serials=st.dictionaries(st.sampled_from(("chassis_serial", "board_serial")), TEXTS),
    macs=st.dictionaries(st.sampled_from(("bond0", "ens2f0np0")), TEXTS),
    bmc=several(TEXTS),
    unread=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@often
@given(
    fault=st.sampled_from(FAULTS),
    labels=st.none() | st.dictionaries(NAMES, LABELS, max_size=2),
    lost=st.dictionaries(NAMES, ERRORS, max_size=2),
    more=several(FOUND),
    accept=st.sampled_from(((), ("TRANSPORT-TCP",), ("NODE-DIFFERS", "NIC-MISSING"))),
    expected=st.booleans(),
)
def test_the_report_of_doctor(
    fault: Any, labels: Any, lost: dict[str, DeployError], more: Any, accept: Any, expected: bool
) -> None:
    cluster = cluster_with("node2", fault.breaks, fault.trials)
    examination = diagnose(cluster, lost, accept=accept, more=more)
    lines = [
        NcclExpectation(
            gang="gang0",
            version="2.30.7",
            nodes=4,
            local_ranks=8,
            halves={"node0": Groups(groups=((0, 1),), reason=NASTY)},
        )
    ]
    escaped(report_html(report_of(examination, lines if expected else (), labels)))


RECORDS = st.lists(
    st.builds(
        record,
        st.sampled_from((1, 4, 128)),
        st.floats(0, 1e6),
        stand_in=st.booleans(),
        verdict=st.sampled_from(("", "ok", "note", "BENCH-SLOW")),
        causes=st.lists(TEXTS, max_size=2),
        plan_id=TEXTS,
        against=TEXTS,
        stack=st.sampled_from(("sglang-0.4.4-l40s", "vllm-0.33.0")),
        packages=st.dictionaries(TEXTS, TEXTS, max_size=2),
        serving=st.sampled_from(({}, {"output_tok_s": 1.0}, {"output_tok_s": 1.0, "itl_median_ms": 2.0})),
    ),
    min_size=1,
    max_size=4,
)


@often
@given(records=RECORDS)
def test_the_page_of_bench(records: list[dict[str, Any]]) -> None:
    escaped(bench_html(bench_of(records)))


POINTS = st.builds(
    LoadPoint, requests=st.sampled_from((1, 4)), tok_s=st.floats(0, 1e6), ttft_ms=MOMENTS, itl_ms=MOMENTS,
    decode_tok_s=st.none() | st.floats(0, 1e6), runs=st.integers(2, 5), noise=st.floats(0, 2),
)  # fmt: skip
RESULTS = st.builds(
    CandidateResult,
    candidate=st.builds(
        Candidate, id=NAMES, model=TEXTS, layout=st.just(Layout(tensor_parallel=8, nnodes=1, gpus_per_node=8)),
        settings=st.dictionaries(TEXTS, TEXTS, max_size=2),
        expected=st.dictionaries(st.sampled_from(("1", "4")), st.floats(0, 1e6)),
    ),
    state=st.sampled_from(CandidateState), cause=TEXTS, kv_tokens=st.none() | COUNTS, start_s=st.none() | MOMENTS,
    points=several(POINTS), stand_in=st.booleans(),
)  # fmt: skip
SWEEPS = st.builds(
    SweepRecord,
    trials=several(
        st.builds(
            NetworkTrial, name=TEXTS, env=st.dictionaries(TEXTS, TEXTS, max_size=2), cause=TEXTS,
            reduces_us=st.dictionaries(st.sampled_from(("14336", "458752")), st.floats(0, 1e6)),
        )
    ),
    gang=NAMES, addresses=st.just(()), model=TEXTS, stack=TEXTS, results=several(RESULTS, 4),
    load=st.builds(
        SweepLoad, requests=st.sampled_from(((1,), (1, 4))), input=st.just(200), output=st.just(200), dataset=TEXTS
    ),
)  # fmt: skip


@often
@given(record=SWEEPS)
def test_the_page_of_sweep(record: SweepRecord) -> None:
    escaped(sweep_html(sweep_of(record)))


GATES = st.builds(
    GateReport, gang=NAMES, old=TEXTS, new=TEXTS, cause=TEXTS, fix=TEXTS,
    changes=several(
        st.builds(SettingChange, node=NAMES, name=TEXTS, was=st.none() | TEXTS, will=st.none() | TEXTS)
    ),
    parts=several(
        st.builds(GatePart, name=TEXTS, old=TEXTS, new=TEXTS, passed=st.sampled_from((True, False, None)), why=TEXTS)
    ),
)  # fmt: skip


@often
@given(report=GATES, run_id=TEXTS)
def test_the_page_of_a_gate(report: GateReport, run_id: str) -> None:
    page = gate_html(gate_of(report, run_id))
    escaped(page)
    assert page.count('class="part"') == len(report.parts)
    assert ("The old plan" in page) != report.passed


@cache
def plans() -> list[Plan]:
    """The golden cases: one node and eight, containers, TCP, InfiniBand, a CPU, vLLM."""
    planned = [case / "case.yml" for case in CASES if (case / "plan.json").exists()]
    return [plan_of_case(yaml.safe_load(case.read_text("utf-8"))) for case in planned]


@often
@given(plan=st.deferred(lambda: st.sampled_from(plans())), value=TEXTS.filter(lambda text: "\ud800" not in text))
def test_launch_scripts_units_and_compose_files(plan: Plan, value: str) -> None:
    gang = plan.gangs[0]
    node = replace(gang.nodes[0], env={**gang.nodes[0].env, "MINE": value})
    whole = replace(plan, gangs=(replace(gang, nodes=(node, *gang.nodes[1:])), *plan.gangs[1:]))
    assert all(text.startswith("#!/bin/sh") for text in launch_scripts(whole).values())
    assert "ExecStart" in unit(node)
    stack = load_stack("sglang-0.5.23")
    for one in shown(whole).gangs[0].nodes:
        assert yaml.safe_load(compose_file(one, gang, stack, template("compose.yml.j2")))["services"]


@often
@given(
    gangs=several(st.builds(GangSpec, name=st.sampled_from(("gang0", "g-1")), nodes=st.just(())), 2),
    receiver=st.sampled_from(("", "http://receiver")),
    managers=st.sampled_from(((), ("10.0.0.9:9093",))),
    price=st.sampled_from((0.0, 0.3)),
)
def test_alerts_and_what_delivers_them(gangs: Any, receiver: str, managers: Any, price: float) -> None:
    files = prometheus_files(
        Inventory(path="hosts.yml", gangs=gangs), exporter="127.0.0.1:9940", alertmanagers=managers,
        receiver=receiver, price_per_kwh=price,
    )  # fmt: skip
    assert all(yaml.safe_load(text) for text in files.values())


@often
@given(
    name=st.sampled_from(("DeepSeek-V3-0324-Block64x64", "gpt-oss-120b", "Kimi-K2.6", "tiny-qwen3-moe")),
    unknown=st.dictionaries(st.sampled_from(("weights_bytes", "context_length")), TEXTS, max_size=2),
)
def test_a_model_profile(name: str, unknown: dict[str, str]) -> None:
    profile = load_profile(name)
    text = profile_file(profile, {}, unknown, template("model.yml.j2"))
    assert yaml.safe_load(text)


RENDERED = {
    "live.html.j2", "live_part.html.j2", "node_drawing.html.j2", "curves.html.j2", "report.html.j2", "bench.html.j2",
    "sweep.html.j2", "gate.html.j2",
    "launch.sh.j2", "launch_container.sh.j2", "agent.service.j2", "compose.yml.j2", "model.yml.j2",
}  # fmt: skip


def test_no_template_is_left_out() -> None:
    assert {path.name for path in data_dir("templates").rglob("*.j2")} == RENDERED
    assert {bool(plan.gangs[0].nodes[0].container) for plan in plans()} == {True, False}
