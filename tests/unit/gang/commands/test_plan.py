"""`plan` on screen: tables for people, one document for programs, and nothing that drives a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.reference_cluster import gang
from tests.support.reference_cluster import node as reference_node
from tests.support.reference_plan import plan_of

from orchestrator.cli.main import main
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import plan as verb
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.standing import as_replicas
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import Inventory, Overrides, RouterSpec
from orchestrator.model.plan import Plan
from orchestrator.planning.commands import plan_options
from orchestrator.planning.offers import LayoutFit
from orchestrator.planning.plan_file import GangDiff, SettingChange
from orchestrator.planning.steps.plan import PlanRequest, PlanResult
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Asked


def planned(**changes: object) -> Plan:
    return plan_of(gang(**changes))  # type: ignore[arg-type]


PROFILE, STACK = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
CLUSTER = Inventory(path="hosts.yml", gangs=(replace(gang(4), spares=(reference_node("spare0", 4, spare=True),)),))


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [((), ""), ((4,), "4"), (tuple(range(8)), "0-7"), ((0, 1, 2, 3, 0, 1, 2, 3), "0-3 0-3"), ((0, 0, 1), "0 0-1")],
)
def test_ranks_of_a_node_are_shown_as_status_has_them(ranks: tuple[int, ...], shown: str) -> None:
    assert plan_options._span(ranks) == shown


def test_spares_are_listed(run) -> None:  # type: ignore[no-untyped-def]
    assert "spare: spare0 replaces a node that is left out of gang0" in run()
    assert json.loads(run("--json"))["gangs"][0]["spares"] == ["spare0"]


def test_the_routers_limit_is_said_beside_what_the_gangs_run(run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    assert "router: " not in run() and json.loads(run("--json"))["router"] is None
    front = RouterSpec(node=reference_node("head", 9), port=8000)
    monkeypatch.setattr(sys.modules[__name__], "CLUSTER", replace(CLUSTER, router=front))
    document = json.loads(run("--json"))
    advised = 2 * document["gangs"][0]["memory"]["requests"]
    assert document["router"] == {"max_requests": None, "advised_max_requests": advised}
    assert f"l40s_router_max_requests: auto ({advised:,}) " in run()
    chosen = replace(CLUSTER, router=replace(front, max_requests="auto"))
    monkeypatch.setattr(sys.modules[__name__], "CLUSTER", chosen)
    assert json.loads(run("--json"))["router"]["max_requests"] == advised and f"at most {advised:,} requests" in run()


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return parser.parse_args(words)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def go(*words: str, plan: Plan | None = None, why: str = "") -> str:
        made = PlanResult(plan=plan or planned(), profile=PROFILE, stack=STACK, why=why, topologies={}, snapshots={})
        monkeypatch.setattr(verb, "open_inventory", lambda *_: CLUSTER)
        monkeypatch.setattr(verb, "make_plan", lambda *_: made)
        monkeypatch.setattr(verb, "layouts_of", lambda *_: {})
        assert verb.run(parse("--model", "M", *words), Screen(as_json="--json" in words)) == 0
        out, err = capsys.readouterr()
        assert (f"stack: {STACK.name}, {why} (--stack NAME" in err) == bool(why)
        return out

    return go


@pytest.mark.parametrize("why", ["the first whose engine can serve it", ""])
def test_a_stack_that_nobody_named_is_told_with_the_reason(run, why: str) -> None:  # type: ignore[no-untyped-def]
    told = json.loads(run("--json", why=why))["stack_chosen"]
    assert told == ({"name": STACK.name, "why": why} if why else None)


def test_options_become_a_request() -> None:
    args = parse("--model", "M", "--tp", "8", "--pp", "4", "--gang", "a", "--gang", "b", "--", "--enable-metrics")
    assert plan_options.request_of(args) == PlanRequest(
        model="M", tp=8, pp=4, gangs=("a", "b"), extra_args=("--enable-metrics",)
    )


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("node-stages", {"layout": "node-stages"}),
        ("pp4,tp8", {"pp": 4, "tp": 8}),
        ("TP32,EP2,DP4", {"tp": 32, "ep": 2, "attn_dp": 4}),
        ("tp8,tp4", {"layout": "tp8,tp4"}),
        ("tp0", {"layout": "tp0"}),
    ],
)
def test_a_layout_is_a_name_or_degrees(text: str, means: dict[str, object]) -> None:
    wanted = PlanRequest(**{"model": "M", **means})  # type: ignore[arg-type]
    assert plan_options.request_of(parse("--model", "M", "--layout", text)) == wanted


@pytest.mark.parametrize("words", [["--tp", "0"], ["--tp", "x"], ["--show", "env", "--diff"]])
def test_words_that_argparse_refuses(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words, "--model", "M")
    assert caught.value.code == 2


@pytest.mark.parametrize(("words", "says"), [([], "no model"), (["--plan", "x", "--tp", "8"], "was combined with")])
def test_a_request_needs_a_model_or_a_plan_and_not_both(words: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_options.request_of(parse(*words))


def test_the_table_shows_what_differs_node_by_node_and_the_rest_once(run) -> None:  # type: ignore[no-untyped-def]
    shown = run()
    assert shown.count("GLOO_SOCKET_IFNAME") == 1
    assert shown.count("--node-rank") == 4
    assert "TP32 on 4 x 8" in shown
    assert "166,142" in shown
    assert "STACK-TESTED" in shown
    assert "nothing was changed" in shown


def test_sources_are_shown_when_asked_for(run) -> None:  # type: ignore[no-untyped-def]
    reason = "exact match"
    assert reason not in run().replace("\n", " ")
    assert reason in " ".join(run("--sources").split())


def test_one_nodes_environment_command_script_and_unit(run) -> None:  # type: ignore[no-untyped-def]
    assert "NCCL_SOCKET_IFNAME==bond0\n" in run("--show", "env")
    assert " --node-rank 2 " in run("--show", "argv", "--node", "node2")
    assert run("--show", "script", "--node", "node1").startswith("#!/bin/sh\n")
    unit = run("--show", "unit", "--node", "node1")
    assert "LimitMEMLOCK=infinity\n" in unit and "/gangs/gang0/runs/RUN\n" in unit


@pytest.mark.parametrize("words", [(), ("--sources",), ("--show", "env"), ("--show", "script"), ("--json",)])
def test_secrets_are_not_shown(run, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    shown = run(*words, plan=planned(overrides=Overrides(env=(("HF_TOKEN", "hf_secret"),))))
    assert "hf_secret" not in shown
    assert "<secret>" in shown


def test_a_difference_in_words() -> None:
    changes = tuple(SettingChange(f"node{number}", "--port", "8000", "9000") for number in range(2))
    running = GangDiff(name="gang0", state="ready", running="aaa", changes=changes)
    assert list(verb.diff_lines(running, "bbb")) == [
        "gang gang0: plan aaa runs (ready); this is plan bbb",
        "  node0, node1: --port: 8000 -> 9000",
        "  needs a restart of the gang. `up` restarts one gang at a time behind a router;",
        "  without another gang to take the requests, `up` needs --replace (downtime)",
    ]
    assert list(verb.diff_lines(replace(running, changes=()), "aaa"))[-1] == "  no changes"
    assert (
        list(verb.diff_lines(replace(running, state="stopped"), "bbb"))[-1]
        == "  `up` starts the gang with these changes"
    )
    assert "never started" in "".join(verb.diff_lines(replace(running, running=""), "bbb"))


def test_a_node_that_is_not_there_is_told_with_those_that_are(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        run("--show", "env", "--node", "nod1")
    assert "node1" in caught.value.fix


def test_hostile_text_can_not_drive_the_terminal(run) -> None:  # type: ignore[no-untyped-def]
    evil = planned(overrides=Overrides(env=(("NCCL_X", "\x1b[2J[bold]x[/bold]"),)))
    for words in ((), ("--sources",), ("--show", "env"), ("--show", "script")):
        shown = run(*words, plan=evil)
        assert "\x1b[2J" not in shown
        assert "[bold]" in shown


def test_the_plan_as_a_file(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = planned()
    run("--out", str(tmp_path / "plan.json"), plan=plan)
    assert json.loads((tmp_path / "plan.json").read_text())["plan_id"] == plan.plan_id
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    assert plan_options.request_of(parse("--plan", str(tmp_path / "plan.json"))).model == "M"
    with pytest.raises(InputError):
        run("--out", str(tmp_path / "missing" / "plan.json"))


@pytest.mark.parametrize(("name", "ports"), [("right", "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"), ("articles", "")])
def test_the_plan_of_an_example_needs_neither_an_inventory_nor_a_node(
    name: str, ports: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "DeepSeek-V3-0324-Block64x64", "--example", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in document["nodes"]] == ["node0", "node1", "node2", "node3"]
    assert {node["env"].get("NCCL_IB_HCA", "").lstrip("=") for node in document["nodes"]} == {ports}


def test_a_draft_is_a_setting_with_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "DeepSeek-V3-0324-Block64x64", "--example", "right", "--json"]
    newer = ["--stack", "sglang-0.5.23"]
    assert main([*words, "--draft", "mtp", *newer]) == 0
    drafting = json.loads(capsys.readouterr().out)["gangs"][0]
    assert main([*words, "--draft", "off", *newer]) == 0
    plain = json.loads(capsys.readouterr().out)["gangs"][0]
    assert drafting["memory"]["kv_tokens"] < plain["memory"]["kv_tokens"]
    assert main([*words, "--draft", "mtp"]) == 2
    assert "--stack sglang-0.5.23" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--diff"], ["--inventory", "hosts.yml"], ["--example", "articels"]])
def test_what_an_example_can_not_be_combined_with(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "DeepSeek-V3-0324-Block64x64", "--example", "right", *more]) == 2
    assert "--example" in capsys.readouterr().err


SAME = GangDiff(name="gang0", state="ready", running="aaa", changes=())


@pytest.mark.parametrize(
    ("gang", "code"),
    [
        (SAME, 0),
        (replace(SAME, changes=(SettingChange("node0", "--port", "1", "2"),)), 7),
        (replace(SAME, left=("node9",)), 7),
        (replace(SAME, running=""), 7),
    ],
)
def test_a_script_is_told_whether_something_differs(
    gang: GangDiff, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "open_inventory", lambda *_: CLUSTER)
    monkeypatch.setattr(verb, "plan_and_diff", lambda *_: (planned(), (gang,)))
    assert verb.run(parse("--model", "M", "--diff", "--exit-code"), Screen()) == code
    assert verb.run(parse("--model", "M", "--diff"), Screen()) == 0
    with pytest.raises(InputError, match="something differs"):
        verb.run(parse("--model", "M", "--exit-code"), Screen())


def test_a_difference_without_a_model_plans_what_was_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[PlanRequest] = []
    names: list[str] = []

    def compared(operation: Operation, request: PlanRequest) -> tuple[Plan, tuple[GangDiff, ...]]:
        names[:] = [gang.name for gang in operation.inventory.gangs]
        wanted.append(request)
        return planned(), (SAME,)

    def replicas(self: Operation) -> Operation:
        return self.on(as_replicas(self.inventory, ()))

    monkeypatch.setattr(Operation, "as_standing", replicas)
    before = Asked(model=PROFILE.name, stack="sglang-0.5.23", ep=2, extra_args=("--enable-metrics",))
    monkeypatch.setattr(verb, "open_inventory", lambda *_: CLUSTER)
    monkeypatch.setattr(plan_options, "open_inventory", lambda *_: CLUSTER)
    monkeypatch.setattr(verb, "plan_and_diff", compared)
    monkeypatch.setattr(verb, "asked_before", lambda *_: before)
    assert verb.run(parse("--diff"), Screen()) == verb.run(parse("--diff", "gang0"), Screen()) == 0
    assert [(request.asked, request.gangs) for request in wanted] == [(before, ()), (before, ("gang0",))]
    assert names == ["gang0-0", "gang0-1", "gang0-2", "gang0-3"]
    verb.run(parse("--diff", "--stack", "sglang-0.4.4"), Screen())
    assert (wanted[-1].model, wanted[-1].stack, wanted[-1].ep) == (PROFILE.name, "sglang-0.4.4", None)
    with pytest.raises(InputError, match="no model was given"):
        verb.run(parse(), Screen())


def test_a_node_that_left_the_inventory_is_said() -> None:
    said = list(verb.diff_lines(replace(SAME, left=("node9",)), "bbb"))
    assert said[1] == "  node9: in the running plan, and not in the inventory any more"
    assert "  no changes" not in said and "needs a restart" in said[2]


def test_gangs_that_are_planned_alike_are_shown_once(run) -> None:  # type: ignore[no-untyped-def]
    one = planned()
    second = replace(one.gangs[0], name="gang1", dist_init="10.0.1.10:5000")
    parts = tuple(replace(part, stack="another") for part in one.gangs[0].nodes)
    other = replace(one.gangs[0], name="gang2", nodes=parts)
    shown = run(plan=replace(one, gangs=(*one.gangs, second, other)))
    assert "gangs gang0, gang1: " in shown and "gang gang2: " in shown
    assert shown.count("KV tokens: ") == 2 and "gang1: rendezvous 10.0.1.10:5000" in shown


def test_speeds_and_layouts_of_equal_gangs_are_shown_once() -> None:
    first = planned().gangs[0]
    its_own = LayoutFit(
        layout=first.layout, name="", weights=1 << 30, kv_tokens=9, measured=False, default=True, unsaid="none"
    )
    fits = (its_own, replace(its_own, layout=replace(first.layout, expert_parallel=2), default=False))
    gangs = [replace(first, name=name) for name in ("gang0", "gang1", "gang2")]
    said = list(verb.speed_lines(gangs, {"gang0": fits, "gang1": fits, "gang2": fits[:1]}))
    assert said[0].startswith("gang0, gang1 at ") and said[1].startswith("layouts that gang0, gang1 can have")
    assert len(said) == 5 and said[4].startswith("gang2 at ")


def test_what_was_measured_here_leads_the_speed_of_the_only_layout_too() -> None:
    first = planned().gangs[0]
    fit = LayoutFit(
        layout=first.layout, name="", weights=1 << 30, kv_tokens=9, measured=False, default=True, unsaid="none",
        here={4: 120.0},
    )  # fmt: skip
    assert list(verb.speed_lines([first], {first.name: (fit,)})) == [
        f"{first.name} at TP32: measured here: 120 tokens/s at 4 requests; speed not calculated: none"
    ]


def test_a_plan_says_where_the_time_of_a_step_goes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "DeepSeek-V3-0324-Block64x64", "--example", "right"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("a step of ", " ms, of it weights ", ", all-reduces ", ", the rest ", "ms a step at 128 (weights,"):
        assert part in shown
    assert main([*words, "--json"]) == 0
    for layout in json.loads(capsys.readouterr().out)["gangs"][0]["layouts"]:
        assert list(layout["step_ms"]) == ["1", "4", "32", "128"]
        assert all(parts.keys() == {"weights", "all_reduces", "rest"} for parts in layout["step_ms"].values())
