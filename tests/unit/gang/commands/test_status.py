"""`status` as typed: exit codes, the JSON document, and how it shows trouble."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.engines.serving import Serving, Worker
from orchestrator.gang.commands import status as verb
from orchestrator.gang.commands.gangs import around_block
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.paths import Contact
from orchestrator.gang.steps.status.overview import with_stated
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.report import Cause, Phase, RankReport, RankState
from orchestrator.protocol.severity import Severity
from orchestrator.remote.fleet import Fleet

INVENTORY = """
all:
  children:
    gangs:
      children:
        g:
          hosts: {a: {ansible_host: 192.0.2.1}, b: {ansible_host: 192.0.2.2}}
"""
GIB = 1 << 30


def node(name: str, rank: int, state: str = "ready", **more: Any) -> NodeView:
    ranks = (RankReport(tp_rank=rank, gpu=0, pid=70 + rank, state=RankState.ALIVE, gpu_memory_bytes=37 * GIB),)
    return NodeView(
        **{"name": name, "node_rank": rank, "state": NodeState(state), "alive": True, "ranks": ranks, **more}
    )


def gang(state: str = "ready", nodes: Sequence[NodeView] = (), **more: Any) -> GangView:
    words: dict[str, Any] = {
        "name": "g",
        "state": GangState(state),
        "model": "M",
        "stack": "s",
        "service_url": "http://192.0.2.1:8000",
        "service_healthy": True,
        "nodes": tuple(nodes) or (node("a", 0), node("b", 1)),
    }
    return GangView(**{**words, **more})


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY)

    def type_it(
        view: GangView, *words: str, router: RouterGlance | None = None, busy: Serving | None = None
    ) -> tuple[int, str, str]:
        serving = {view.name: busy} if busy else {}
        monkeypatch.setattr(verb, "overview", lambda *_: Overview(views=(view,), router=router, serving=serving))
        code = main(["status", "-i", str(inventory), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return type_it


def test_a_ready_gang(run: Run) -> None:
    code, out, _ = run(gang())
    assert code == 0
    assert out.splitlines()[0].split() == ["g", "ready", "M", "by", "s"]
    assert "service http://192.0.2.1:8000 (healthy)" in out and "37.0" in out


def test_the_document(run: Run) -> None:
    code, out, _ = run(gang(), "--json")
    (told,) = json.loads(out)["gangs"]
    assert code == 0
    assert (told["name"], told["state"], told["model"], told["cause"]) == ("g", "ready", "M", None)
    assert told["service"] == {"url": "http://192.0.2.1:8000", "healthy": True, "max_queued": None}
    assert [(one["name"], one["node_rank"], one["state"], one["phase"]) for one in told["nodes"]] == [
        ("a", 0, "ready", ""),
        ("b", 1, "ready", ""),
    ]
    assert told["nodes"][1]["ranks"] == [
        {"tp_rank": 1, "gpu": 0, "state": "alive", "pid": 71, "gpu_memory_bytes": 37 * GIB}
    ]


def test_tokens_of_a_step_are_shown_with_speculative_decoding_only(run: Run) -> None:
    busy = Serving(running=3, queued=1, prompt_tokens=0.0, generation_tokens=9.0, cache_used=0.4, accept_length=1.846)
    assert "1.85 tokens a step" in run(gang(), busy=busy)[1].splitlines()
    (told,) = json.loads(run(gang(), "--json", busy=busy)[1])["gangs"]
    assert told["serving"] == {"running": 3, "queued": 1, "cache_used": 0.4, "accept_length": 1.846}
    assert "a step" not in run(gang(), busy=replace(busy, accept_length=None))[1]
    assert json.loads(run(gang(), "--json")[1])["gangs"][0]["serving"] is None


CAUSE = Cause(
    node="b", tp_rank=19, signal=9, text="TP19 on GPU 3 (pid 7) was killed", fix="look there", lines=("\x1b[31mlast",)
)


def test_a_failed_gang_has_exit_code_5(run: Run) -> None:
    view = gang("failed", cause=CAUSE, secondary=(Cause(node="a", text="followed", secondary=True),))
    code, out, _ = run(view)
    assert code == 5
    assert "cause: b: TP19 on GPU 3 (pid 7) was killed" in out and "fix: look there" in out
    assert "\x1b[31m" not in out and "\\x1b[31mlast" in out
    assert "(1 later error followed from it; see --json)" in out
    (told,) = json.loads(run(view, "--json")[1])["gangs"]
    assert (told["cause"]["node"], told["cause"]["tp_rank"], told["cause"]["signal"]) == ("b", 19, 9)
    assert [cause["node"] for cause in told["secondary"]] == ["a"]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_node_that_does_not_answer_is_exit_code_4_beside_the_others(run: Run, words: tuple[str, ...]) -> None:
    lost = Unreachable("connection refused", where="b", fix="look")
    nodes = (node("a", 0), node("b", 1, "unreachable", alive=False, ranks=(), error=lost, contact=Contact.SSH))
    remark = "b can't be reached by SSH"
    code, out, _ = run(gang("degraded", nodes, trouble="unreachable", remarks=(remark,)), *words)
    assert code == 4 and remark in out
    if words:
        told = json.loads(out)["gangs"][0]
        assert (told["trouble"], told["nodes"][1]["contact"]) == ("unreachable", "ssh")
        assert told["nodes"][1]["error"] == {"what": "connection refused", "where": "b", "fix": "look"}
    else:
        assert "degraded (unreachable)" in out


def test_what_the_log_has_proved_is_said(run: Run) -> None:
    view = gang(proved=("the PCIe-IPC all-reduce",))
    code, out, _ = run(view)
    assert code == 0 and "in use, by the engine's log: the PCIe-IPC all-reduce" in out
    assert json.loads(run(view, "--json")[1])["gangs"][0]["proved"] == ["the PCIe-IPC all-reduce"]


def test_a_hung_engine_a_stopped_rank_and_a_straggler_show(run: Run) -> None:
    stopped = RankReport(tp_rank=1, gpu=0, pid=71, state=RankState.STOPPED, gpu_memory_bytes=GIB)
    hung = gang("degraded", (node("a", 0), node("b", 1, ranks=(stopped,))), trouble="hung", cause=CAUSE)
    assert "degraded (hung)" in run(hung)[1] and "1!" in run(hung)[1]
    words = "b is at shard 41 of 163, the others are done"
    loading = node("b", 1, "starting", phase=Phase(name="weights", step=41, of=163))
    out = run(gang("starting", (node("a", 0, "starting"), loading), progress=words))[1]
    assert words in out and "weights 41/163" in out


DEVICE = Finding(id="TRANSPORT-DEVICE-UNUSED", severity=Severity.SLOW, node="a", title="mlx5_1 is unused")
REASONS = [("hung", "hung"), ("stopped", "hung"), ("silent", "silent"), ("slow", "slow"), ("no-memory", "nodes")]
DEGRADED = [
    *((gang("degraded", trouble=trouble), why) for trouble, why in REASONS),
    (gang(transport=(DEVICE,)), "rails"),
]


@pytest.mark.parametrize(("view", "reason"), DEGRADED)
def test_a_degraded_gang_is_exit_code_3_with_one_word_why(run: Run, view: GangView, reason: str) -> None:
    code, out, _ = run(view, "--json")
    assert (code, json.loads(out)["gangs"][0]["degraded_reason"]) == (3, reason)


@pytest.mark.parametrize("state", ["absent", "staged", "armed", "starting", "warming", "draining", "stopping"])
def test_a_gang_on_its_way_or_stopped_is_exit_code_0(run: Run, state: str) -> None:
    code, out, _ = run(gang(state, service_healthy=None), "--json", router=router())
    assert (code, json.loads(out)["gangs"][0]["degraded_reason"]) == (0, None)


def test_the_worst_decides_the_exit_code() -> None:
    failed, hung = gang("failed", cause=CAUSE), gang("degraded", trouble="hung")
    lost = gang("absent", (node("a", 0, "unreachable", error=Unreachable("no", where="a", fix="")),))
    views = [gang(), lost, hung, failed]
    assert [Overview(views=tuple(views[:end])).exit_code for end in range(1, 5)] == [0, 4, 3, 5]


def test_only_the_gangs_that_are_asked_for_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def status(_: Fleet, gangs: Sequence[GangSpec], names: Sequence[str] = ()) -> Overview:
        asked.extend(one.name for one in gangs)
        return Overview(views=())

    monkeypatch.setattr("orchestrator.gang.steps.status.overview.status", status)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {children: {gangs: {children: {g: {hosts: {a: }}, h: {hosts: {b: }}}}}}")
    assert main(["status", "-i", str(inventory), "h"]) == 0 and asked == ["h"]
    assert main(["status", "-i", str(inventory), "i"]) == 2
    assert "no gang is called 'i'" in capsys.readouterr().err


SERVES = "http://192.0.2.1:8000"
LOST = Unreachable("no route", where="head", fix="look")


def router(*workers: Worker, **more: Any) -> RouterGlance:
    return RouterGlance(**{"url": "http://h:3", "node": "head", "state": GangState.READY, "workers": workers, **more})


WELL, SICK, STRANGE = (Worker("1", SERVES, True, 3), Worker("1", SERVES, False, 0), Worker("1", "http://x", True, 0))
GONE = router(state=GangState.ABSENT, workers=None)
ROUTERS = [
    (0, "in", router(WELL), "(healthy; in the router, 3 requests)", "router ready  http://h:3  in: g"),
    (3, "unhealthy", router(SICK), "; unhealthy according to the router)", "router degraded  http://h:3  unhealthy: g"),
    (3, "out", router(STRANGE), "; not in the router)", "out: g; not of this inventory: http://x"),
    (3, "out", GONE, "; not in the router)", "router absent  http://h:3  out: g"),
    (4, None, router(state=None, workers=None, error=LOST), "(healthy)", "head: no route (fix: look)"),
    (4, None, router(workers=None, error=LOST), "(healthy)", "router ready"),
]


@pytest.mark.parametrize(("wanted", "place", "seen", "beside", "line"), ROUTERS)
def test_the_router(run: Run, wanted: int, place: str | None, seen: RouterGlance, beside: str, line: str) -> None:
    code, out, _ = run(gang(), router=seen)
    assert code == wanted
    assert beside in out and line in out
    told = json.loads(run(gang(), "--json", router=seen)[1])
    assert told["gangs"][0]["router"] == place
    assert told["gangs"][0]["degraded_reason"] == ("router" if wanted == 3 else None)
    assert told["router"]["healthy"] == (seen.state == "ready" and any(one.healthy for one in seen.workers or ()))
    assert told["router"]["state"] == ("degraded" if place == "unhealthy" else seen.state)
    assert (told["router"]["workers"] is None) == (seen.workers is None)
    assert (told["router"]["error"] is None) == (seen.error is None)


def test_without_a_router_nothing_is_said_of_one(run: Run) -> None:
    assert "router" not in run(gang())[1]
    told = json.loads(run(gang(), "--json")[1])
    assert told["router"] is None and told["gangs"][0]["router"] is None


OTHER = Worker("2", "http://192.0.2.2:8000", True, 0)


@pytest.mark.parametrize(
    ("stated", "unstated", "line"),
    [
        ({OTHER.url: "h"}, False, "in: g, h"),
        ({}, True, "in: g; of a gang that was not read, or not of this inventory: http://192.0.2.2:8000"),
        ({}, False, "in: g; not of this inventory: http://192.0.2.2:8000"),
    ],
)
def test_another_gangs_address_is_not_a_strangers(stated: dict[str, str], unstated: bool, line: str) -> None:
    seen = Overview(views=(gang(),), router=router(WELL, OTHER), stated=stated, unstated=unstated)
    assert line in str(around_block(seen)[0])


def test_the_inventory_says_where_gangs_serve() -> None:
    def spec(name: str, address: str | None) -> GangSpec:
        node = NodeSpec(name=f"{name}0", gang=name, node_rank=0, reach=Reach(host="x"), address=address)
        return GangSpec(name=name, nodes=(node,))

    told = with_stated(Overview(views=()), [spec("g", "192.0.2.1"), spec("h", "192.0.2.2")])
    assert told.stated == {SERVES: "g", OTHER.url: "h"} and not told.unstated
    assert with_stated(Overview(views=()), [spec("g", None)]).unstated
