"""Every verb once on a pseudo-terminal: the final screen.

Steps are replaced here; the display is the verb's own, through a terminal emulator.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.machine_files import reference_machine
from tests.support.reference_cluster import gang as reference
from tests.support.reference_plan import plan_of
from tests.support.terminal import COLUMNS, Shown, Terminal
from tests.unit.gang.commands.test_watching import load
from tests.unit.gang.commands.test_watching import node as node_view

from orchestrator import __version__
from orchestrator.bench.steps.bench import BenchedGang
from orchestrator.bench.verdict import judge, overall
from orchestrator.checkpoint.steps.chain import Hop
from orchestrator.checkpoint.steps.push import PushResult
from orchestrator.cli import main as cli
from orchestrator.doctor.steps.recordings import save_snapshots
from orchestrator.gang.guarding import GuardAction, GuardDecision
from orchestrator.gang.history import FailureVerdict, PastRun
from orchestrator.gang.overview import Overview
from orchestrator.gang.steps.down import StopResult
from orchestrator.gang.steps.restart import RestartResult
from orchestrator.gang.steps.router.client import RouterState
from orchestrator.gang.steps.start_time import downtime_words
from orchestrator.gang.steps.status.history import Explanation, GangHistory
from orchestrator.gang.steps.status.logs import LogLine
from orchestrator.gang.steps.up_operation import UpResult
from orchestrator.gang.view import GangView, NodeView
from orchestrator.hosts.steps.prepare import PrepareResult
from orchestrator.hosts.steps.runner import HostEvent, HostResult
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.per_node import PerNode
from orchestrator.model.plan import Plan
from orchestrator.model.profile import Load
from orchestrator.nettest.messages import NettestLine
from orchestrator.nettest.nettest_report import ModelShape, NettestResult, Verification
from orchestrator.nettest.schedule import Place, schedule
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.verdict import judge_links, judge_tests
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.report import Cause, Phase
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.verbs import StopAnswer
from orchestrator.support.steps.bundle import SupportBundle

REFERENCE = str(Path(__file__).resolve().parents[3] / "inventory" / "reference.yml")
MODEL = "DeepSeek-V3-0324-Block64x64"
NODES = tuple(f"node{rank}" for rank in range(4))

Scene = Mapping[str, Any]
"""What stands in the place of a step, by its dotted name below orchestrator."""


def view(state: str = "ready", name: str = "gang0", **more: Any) -> GangView:
    return GangView(
        **{
            "name": name,
            "state": GangState(state),
            "model": MODEL,
            "stack": "sglang-0.5.23",
            "service_url": "http://192.0.2.1:8000",
            "service_healthy": state == "ready",
            "canary_text": " Paris",
            "nodes": tuple(node(rank, "ready" if state == "degraded" else state) for rank in range(4)),
            **more,
        }
    )


def node(rank: int, state: str) -> NodeView:
    return node_view(rank, state, phase=Phase(name="weights", step=41, of=163) if state == "starting" else Phase())


def plan() -> Plan:
    return plan_of(reference(), MODEL)


def rise(watcher: Any, *names: str) -> None:
    """A workflow's messages while gangs stop and start, long enough for the display to be drawn."""
    for name in names:
        watcher.step(name, "stopping")
        for state in ("draining", "starting", "starting", "warming", "ready"):
            watcher.seen([view(state, name)])
            time.sleep(0.03)


def turning(*names: str, rolled: bool = False) -> Scene:
    """These gangs stop and start. rolled: one after the other."""

    def restart(_: object, __: object, watcher: Any) -> RestartResult:
        watcher.step("gang0", downtime_words(view(), drain_s=30.0))
        rise(watcher, *names)
        return RestartResult(views=tuple(view(name=name) for name in names), seconds=12.3, rolled=rolled)

    return {"gang.commands.restart.restart": restart}


def starting(findings: tuple[Finding, ...] = ()) -> Scene:
    planned = replace(plan(), findings=findings)

    def up(_: object, __: object, watcher: Any) -> UpResult:
        watcher.planned(planned)
        rise(watcher, "gang0")
        return UpResult(plan=planned, views=(view(),), ready_before=frozenset(), seconds=12.3)

    return {"gang.commands.up.up": up}


SLOW = (
    *(
        Finding(
            id="NIC-NOT-UNDER-SWITCH",
            severity=Severity.SLOW,
            node=name,
            title="a card stands apart",
            effect="decoding is slower by a third",
            fix="move it",
        )
        for name in NODES
    ),
    Finding(id="RDMA-PORT-DOWN", severity=Severity.SLOW, node="node1", title="mlx5_1 is down", fix="plug it in"),
)
"""Findings that cost speed, on all nodes and on one."""

PAST = PastRun(
    gang="gang0", run_id="r1", plan_id="p1", model=MODEL, started=1.0, ended=2.0, by="anna@desk", command="up",
    end="failed", cause=Cause(node="node2", text="TP19 was killed"),
)  # fmt: skip
AUDIT = {
    "at": 1.0, "who": "anna", "host": "desk", "pid": 7, "action": "begins", "command": "l40s-deploy up", "why": "",
}  # fmt: skip
HISTORY: Scene = {
    "gang.commands.history.history": lambda *_: (GangHistory(gang="gang0", runs=(PAST,), audit=(AUDIT,), failures={}),)
}


def guard(_: object, __: object, watcher: Any) -> tuple[Any, ...]:
    watcher.decided("gang0", GuardDecision(GuardAction.RESTART, "TP19 was killed"))
    rise(watcher, "gang0")
    watcher.decided("gang0", GuardDecision(GuardAction.NOTHING, "it has been restarted"))
    return ()


def start_router(_: object, watcher: Any, *, command: str, timeout_s: float) -> RouterState:
    rise(watcher, "router")
    return RouterState(view=view(name="router"), url="http://192.0.2.9:30000")


def shown(*views: GangView) -> Scene:
    return {"gang.commands.status.overview": lambda *_: Overview(views=views)}


def suffering() -> Scene:
    """A gang that hangs, one on TCP with remarks, one that failed, and one that never ran."""
    lines = ("[2026-11-26 01:00:00 TP19] NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.13<40000>",)
    cause = Cause(node="node2", tp_rank=19, text="the engine hangs: no token for 60 s", lines=lines, fix="look at it")
    over_tcp = "traffic between the nodes travels over TCP (bond0)"
    return shown(
        view("degraded", "gang0", trouble="hung", cause=cause, remarks=("node1 has not heard from node2",)),
        view("ready", "gang1", nodes=(), over_tcp=over_tcp, remarks=("a", "b")),
        view("failed", "gang2", cause=Cause(node="node1", text="it was killed"), secondary=(cause,)),
        GangView(name="gang3", state=GangState.ABSENT),
    )


def gpus() -> Scene:
    return {
        **shown(view()),
        "gang.steps.status.live.node_loads": lambda *_: dict.fromkeys(NODES, load()),
    }


def explained(verdict: FailureVerdict | None, now: GangView) -> Scene:
    return {
        "gang.commands.why.why": lambda *_, **__: (Explanation(gang="gang0", verdict=verdict, now=now, failures={}),)
    }


DIED = Cause(node="node1", tp_rank=9, text="GPU 1 has fallen off the bus (Xid 79)", fix="reboot node1")
FAILED = FailureVerdict(
    gang="gang0", run_id="r1", plan_id="p", model=MODEL, stack="s", cause=DIED, secondary=(DIED,), ago_s=9.0,
    newest=False,
)  # fmt: skip
HANGS = view("degraded", trouble="hung", cause=Cause(node="node2", tp_rank=19, text="the engine hangs", fix="look"))
BENCHED = {
    "id": "20261126-010000-gang0-3f2a", "at": 1.7e9, "model": MODEL, "stack": "sglang-0.4.4-l40s",
    "layout": "PP4 x TP8", "load": {"concurrency": 128}, "serving": {"output_tok_s": 391.47},
    "verdict": "BENCH-SLOW",
}  # fmt: skip
STOPPED = tuple(StopResult(gang="gang0", node=name, was="ready", told=StopAnswer(state="stopped")) for name in NODES)


def prepare(_: object, __: object, on_step: Callable[[HostEvent], None]) -> PrepareResult:
    outcomes: tuple[Any, ...] = ("started", "changed")
    for name in NODES:
        for outcome in outcomes:
            on_step(HostEvent(host=name, task="Install the packages", role="packages", outcome=outcome, seconds=1.0))
            time.sleep(0.03)
    results = {name: HostResult(ok=9, changed=1, skipped=0) for name in NODES}
    return PrepareResult(nodes=NODES, results=PerNode(values=results, failures={}), seconds=12.3)


def push(_: object, __: object, picture: Any) -> PushResult:
    hops: tuple[Hop, ...] = ()
    for done in (1 << 30, 2 << 30, 4 << 30):
        hops = tuple(Hop(name=name, state="fetching", bytes=done) for name in NODES)
        picture.moved(hops, 4 << 30, done)
        time.sleep(0.03)
    return PushResult(
        source="/models/x",
        directories=dict.fromkeys(NODES, "/workspace/x"),
        bytes=4 << 30,
        files=3,
        nodes=PerNode(values={hop.name: hop for hop in hops}, failures={}),
        shared={},
        network="eth0",
        seconds=12.3,
    )


def counted(at: Callable[[str, int, int], None], name: str, of: int) -> None:
    for done in range(3):
        at(name, done, of)
        time.sleep(0.03)


def check_now(_: object, __: object, ___: object, at: Callable[[str, int, int], None]) -> tuple[Any, ...]:
    counted(at, "gang0", 3)
    verdict, kept = SimpleNamespace(value="same"), SimpleNamespace(varies=(), left_out=())
    outcome = SimpleNamespace(gang="gang0", subject=MODEL, verdict=verdict, compared=(), wrong=(), baseline=kept)
    outcome.in_batches = None
    return (outcome,)


def bench_now(_: object, __: object, at: Callable[[str, int, int], None]) -> BenchedGang:
    counted(at, "run", 256)
    speed = {"output_tok_s": 391.47}
    record = {
        "id": "run-1",
        "gang": "gang0",
        "model": MODEL,
        "stack": "sglang-0.4.4-l40s",
        "layout": "TP32",
        "gpu": "NVIDIA L40S",
        "load": {"concurrency": Load().concurrency},
        "dataset": "own text",
        "serving": speed,
        "runs": [speed],
        "stand_in": False,
        "against": "articles-int8",
        "causes": ["traffic on TCP"],
    }
    judged = judge(speed, {"output_tok_s": 584.64})
    return BenchedGang(record=record, file="/state/run-1.json", judged=judged, verdict=overall(judged), expected=None)


def nettest_now(_: object, __: object, at: Callable[[str, int, int], None]) -> tuple[nettest.TestedGang, ...]:
    places = [Place(node=name, ranks=(number,), gpus=(0,)) for number, name in enumerate(NODES)]
    steps = schedule(places, 7168)
    figures = [
        NettestLine(step=step.id, group=place, bytes=1 << 20, us=9999.0 if {1, 2} <= set(group) else 100.0)
        for step in steps
        for place, group in enumerate(step.groups)
        if step.kind == "pairs"
    ] + [NettestLine(step=0, group=0, bytes=size, us=50.0, captured=True) for size in steps[0].bytes]
    counted(at, "gang0", len(steps))
    result = NettestResult(
        gang="gang0",
        nodes=NODES,
        ranks=4,
        links=judge_links(steps, figures, places, {}),
        tests=judge_tests(steps, figures, places, {}),
        transport=dict.fromkeys(NODES, "NCCL: IB over mlx5_0:1 with GPUDirect RDMA"),
        moved=(),
        shape=ModelShape(hidden_size=7168, layers=61),
        seconds=12.3,
        steps_s=10.0,
        verification=Verification(pairs=12, least=1 << 26, seconds=0.4),
    )
    return (nettest.TestedGang(result=result, record={}, file="/state/nettest/1.json"),)


def interrupted(_: float) -> None:
    raise KeyboardInterrupt


WEB: Scene = {
    "monitoring.commands.web.Watching": lambda *_: contextlib.nullcontext(),
    "monitoring.commands.web.serve": lambda *_: contextlib.nullcontext(8090),
    "monitoring.commands.web.time": SimpleNamespace(sleep=interrupted),
}
COMPOSE: Scene = {
    "monitoring.commands.export.read_request": lambda _: PlanRequest(model=MODEL),
    "monitoring.commands.export.make_plan": lambda *_: SimpleNamespace(plan=plan()),
}
BUNDLE = SupportBundle(
    path=Path("out.tar.gz"), files=("manifest.json",), missing={"snapshots/node3": "no answer"}, bytes=2048
)
ALONE: Scene = {}
"""It needs no cluster."""

LAST_NODE = "3     node3  ready  24-31"
REHEARSED: Scene = {"gang.commands.up.rehearse": lambda *_: plan()}
LOGS: Scene = {"gang.commands.logs.logs": lambda *_, **__: iter([LogLine("l40s-1", "ready\x1b[2J to serve")])}
RECIPE: Scene = {"hosts.steps.stack.write_recipe": lambda _, out: (out / "build.sh",)}
NETTEST: Scene = {"nettest.steps.nettest.run_now": nettest_now}
PUSH: Scene = {"checkpoint.steps.push.push": push}
BUNDLED: Scene = {"support.commands.support_bundle.bundle": lambda *_, **__: BUNDLE}
ROLLING = turning("gang0", "gang1", rolled=True)
PREPARE: Scene = {
    "hosts.steps.prepare.prepare": prepare,
    "hosts.steps.prepare.tasks_of": lambda *_: dict.fromkeys(NODES, 41),
}
SCENES: list[tuple[str, Scene, tuple[str, ...]]] = [
    ("restart", turning("gang0"), (LAST_NODE, "serves again after 12.3 s; canary: 'Paris'")),
    ("restart --maintenance", turning("gang0"), (LAST_NODE, "serves again after 12.3 s; canary: 'Paris'")),
    ("restart --rolling", ROLLING, ("restarted one after the other in 12.3 s: gang0, gang1",)),
    (f"up --model {MODEL}", starting(), (LAST_NODE, "ready in 12.3 s; canary: 'Paris'")),
    (f"up --model {MODEL} --dry-run", REHEARSED, ("KV tokens: ", "rendezvous 10.0.0.11:5000")),
    ("guard --once", {"gang.commands.guard.guard": guard}, ("gang0: it has been restarted",)),
    ("rollback", turning("gang0"), (LAST_NODE, "serves again after 12.3 s; canary: 'Paris'")),
    ("history", HISTORY, ("failed  run r1  plan p1  by anna@desk", "  up", "  cause: node2: TP19 was killed")),
    ("history --commands", HISTORY, ("gang0  anna@desk (pid 7)  begins l40s-deploy up",)),
    ("golden check", {"golden.steps.golden.of_gangs": check_now}, ("gang0: 0 of 0 answers match the accepted ones",)),
    ("bench", {"bench.steps.bench.run_now": bench_now}, ("verdict: BENCH-SLOW", "likely: traffic on TCP", "67 %")),
    ("nettest", NETTEST, ("NETTEST-SLOW-LINK: node1 GPU 0", "verdict: slow")),
    ("router up", {"gang.commands.router.start_router": start_router}, ("router ready  http://192.0.2.9:30000",)),
    ("status", shown(view()), (LAST_NODE,)),
    ("status gang0", suffering(), ("gang0 degraded (hung)", "2 remarks: `l40s-deploy status --remarks`", "over TCP")),
    ("status --wide", gpus(), (LAST_NODE, "node3  7")),
    (f"up {MODEL} --strict", starting(SLOW), ("slow: NIC-NOT-UNDER-SWITCH: all 4 nodes: a card stands apart",)),
    ("why gang0", explained(FAILED, HANGS), ("Xid 79", "to have it serve again: l40s-deploy restart gang0")),
    ("bench list", {"bench.store.all_benches": lambda: [BENCHED]}, ("20261126-010000-gang0-3f2a",)),
    ("models GLM-4.6-FP8", ALONE, ("tp32*",)),
    ("down", {"gang.commands.down.down": lambda *_, **__: STOPPED}, ("gang0: stopped on node0, node1, node2, node3",)),
    ("why", explained(None, view("absent")), ("gang0: no recorded run has failed",)),
    ("logs", LOGS, (r"l40s-1 | ready\x1b[2J to serve",)),
    ("lock", {"gang.commands.lock.locks": lambda *_: ()}, ("no locks are held",)),
    ("models", ALONE, ("*: the default of `plan` and `up`",)),
    ("doctor --from {seen}", ALONE, ("4 nodes, 32 GPUs examined",)),
    ("discover --from {seen}", ALONE, ("4 nodes, 32 GPUs, 20 of 20 RDMA ports active",)),
    ("prepare", PREPARE, ("4 of 4 nodes ready after 12.3 s",)),
    ("stack recipe sglang-0.4.4-l40s --out {seen}", RECIPE, ("/build.sh",)),
    ("checkpoint push /models/x", PUSH, ("node3: /workspace/x", "4.0 GiB in 3 files on 4 nodes after")),
    (f"tuning status --offline --model {MODEL}", ALONE, ("SGLang 0.5.23",)),
    ("version", {"gang.commands.version.versions": lambda *_: ()}, (f"l40s-deploy {__version__}",)),
    ("lab faults", ALONE, ("gpu-lost",)),
    ("web", WEB, ("page: http://127.0.0.1:8090/",)),
    ("export compose plan.json", COMPOSE, ("network_mode: host",)),
    ("support-bundle", BUNDLED, ("out.tar.gz: 1 files, 2 KiB", "missing: snapshots/node3: no answer")),
    ("completion bash", ALONE, ("-F _shtab_l40s_deploy l40s-deploy",)),
]
LISTS = ("discover", "tuning")
FOR_PROGRAMS = ("completion", "export", "logs")
WITHOUT_A_CLUSTER = ("doctor", "discover", "stack", "lab", "completion", "man")


@pytest.fixture
def on_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shown]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def type_it(line: str, scene: Scene, columns: int = COLUMNS, **terminal: Any) -> Shown:
        monkeypatch.setattr("orchestrator.golden.steps.golden.after_start", lambda *_: {})
        for place, step in scene.items():
            monkeypatch.setattr(f"orchestrator.{place}", step)
        if "--from {seen}" in line:
            save_snapshots({name: reference_machine(name).snapshot() for name in NODES}, tmp_path / "seen")
        words = [word.format(seen=tmp_path / "seen") for word in line.split()]
        if words[0] not in WITHOUT_A_CLUSTER:
            words += ["-i", REFERENCE]
        return Terminal(columns).run(lambda: cli.main(words), monkeypatch, **terminal)

    return type_it


@pytest.mark.parametrize(("line", "scene", "wanted"), SCENES, ids=[line for line, *_ in SCENES])
def test_what_a_verb_ends_with_stays_on_the_screen(
    on_terminal: Callable[..., Shown], line: str, scene: Scene, wanted: tuple[str, ...]
) -> None:
    shown = on_terminal(line, scene)
    assert shown.code in (0, 3, 4, 5, 7), shown.text
    for words in wanted:
        assert any(words in row for row in shown.lines), shown.text
    assert sum("node3  ready" in row for row in shown.lines) <= 1, shown.text  # no leftovers of the display


@pytest.mark.turns(play=10)
@pytest.mark.parametrize(("line", "scene"), [scene[:2] for scene in SCENES if scene[0].split()[0] not in FOR_PROGRAMS])
def test_no_word_is_broken_in_80_columns_and_nothing_is_said_twice(
    on_terminal: Callable[..., Shown], line: str, scene: Scene
) -> None:
    """A word of the narrow screen is one of a screen on which everything fits."""
    wide, narrow = on_terminal(line, scene, columns=1000), on_terminal(line, scene, columns=80)
    whole = set(_words(wide))
    longer = [word for word in whole if len(word) > 80]
    assert not [word for word in _words(narrow) if word not in whole and not any(word in one for one in longer)]
    sentences = [one for row in wide.lines if "  " not in row.strip() for one in re.split("[.;:] ", row.strip())]
    told = [one for one in sentences if len(re.findall("[A-Za-z]{2,}", one)) > 4]
    assert not [one for one in set(told) if told.count(one) > 1 and line.partition(" ")[0] not in LISTS], wide.text


_FIGURE = re.compile(r"[\d.,:]+")


def _words(shown: Shown) -> list[str]:
    """Figures aside: some tell the time."""
    return [_FIGURE.sub("0", word) for word in shown.text.split()]


def test_every_verb_is_tried() -> None:
    tried = {line.split()[0] for line, *_ in SCENES}
    # `up --dry-run` shows what plan shows; tests/lab/test_newcomer.py answers the questions of init on a terminal
    # `exporter` serves until it is ended and draws nothing; `notify` prints a line per recipient, and the reference
    # inventory has no recipients (tests/lab/test_monitoring_in_lab.py); `certify` and `sweep` draw what `nettest`, `up`
    # and `bench` do
    assert {*cli.VERBS} - tried == {"plan", "init", "exporter", "notify", "certify", "sweep"}


@pytest.mark.parametrize("line", ["restart", "restart --rolling", f"up --model {MODEL}"])
def test_a_terminal_without_cursor_movement_gets_lines(on_terminal: Callable[..., Shown], line: str) -> None:
    (scene,) = (scene for typed, scene, _ in SCENES if typed == line)
    shown = on_terminal(line, scene, term="dumb")
    assert any("gang0: node3: starting, weights 41/163" in row for row in shown.lines), shown.text
    assert b"\x1b[" not in shown.raw.replace(b"\x1b[0m", b"")
