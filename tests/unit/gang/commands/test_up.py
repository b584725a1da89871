"""`up` as typed: exit codes, one JSON document whatever happens, and the messages for failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.commands import unconnected
from tests.support.reference_cluster import gang as reference
from tests.support.reference_plan import plan_of

from orchestrator.cli.main import main
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import up as verb
from orchestrator.gang.commands.outcome import RisingProgress
from orchestrator.gang.steps.raising import failure_of
from orchestrator.gang.steps.up_operation import UpRequest, UpResult
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.errors import (
    DeployError,
    FindingsError,
    GangFailed,
    InputError,
    LockHeld,
    NodeError,
    Undone,
    Unreachable,
)
from orchestrator.protocol.report import Cause, Phase

INVENTORY = """
all: {children: {gangs: {children: {g: {hosts: {a: {ansible_host: 192.0.2.1}, b: {ansible_host: 192.0.2.2}}}}}}}
"""
MODEL = "DeepSeek-V3-0324-Block64x64"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY)

    def type_it(answer: UpResult | BaseException, *words: str) -> tuple[int, str, str]:
        def up(_: object, request: UpRequest, watcher: object) -> UpResult:
            assert request.undo_on_interrupt == ("--undo-on-interrupt" in words)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(verb, "up", up)
        code = main(["up", "-i", str(inventory), "--model", MODEL, *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return type_it


def outcome(*, before: bool = False) -> UpResult:
    plan = plan_of(reference(), MODEL)
    nodes = (
        NodeView(name="a", node_rank=0, state=NodeState("ready")),
        NodeView(name="b", node_rank=1, state=NodeState("ready")),
    )
    view = GangView(name="g", state=GangState.READY, model=MODEL, canary_text=" Paris\x07", nodes=nodes)
    return UpResult(plan=plan, views=(view,), ready_before=frozenset("g" if before else ()), seconds=12.34)


def test_ready(run: Run) -> None:
    code, out, _ = run(outcome())
    assert code == 0 and "ready in 12.3 s; canary: 'Paris" in out and "\x07" not in out
    code, out, _ = run(outcome(before=True))
    assert code == 0 and "g is already ready with this plan; nothing changed" in out and "tested" not in out
    code, out, _ = run(outcome(before=True), "--nettest")
    assert code == 0 and "nor was anything tested: that is done before a start (`l40s-deploy down g`)" in out


def test_the_document(run: Run) -> None:
    code, out, _ = run(outcome(before=True), "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["seconds"], told["already_ready"], told["gangs"][0]["state"]) == (12.34, ["g"], "ready")
    assert set(told) >= {"plan_id", "findings", "gangs"}


FAILURES = [
    (InputError("unknown model", where="--model", fix="one of"), 2),
    (FindingsError("a stop finding", where="a", fix="correct it"), 3),
    (NodeError("port 8000: taken", where="a: port 8000", fix="end it"), 3),
    (Unreachable("no route", where="b", fix="look"), 4),
    (GangFailed("TP19 was killed\n    | last line", where="gang g: b TP19", fix="look"), 5),
    (LockHeld("anna holds it", where="a", fix="wait"), 6),
]


@pytest.mark.parametrize(("failure", "code"), FAILURES, ids=[type(failure).__name__ for failure, _ in FAILURES])
def test_every_failure_has_its_exit_code_and_its_words(run: Run, failure: DeployError, code: int) -> None:
    found, out, err = run(failure)
    assert (found, out) == (code, "")
    assert f"error: {failure.where}: {failure.what}" in err and f"fix: {failure.fix}" in err
    found, out, err = run(failure, "--json")
    assert (found, out) == (code, "")
    assert json.loads(err.splitlines()[-1]) == {
        "error": {"what": failure.what, "where": failure.where, "fix": failure.fix}
    }


def test_interrupted_it_says_how_to_go_on(run: Run) -> None:
    code, out, err = run(KeyboardInterrupt())
    assert (code, out) == (130, "") and "detached" in err and "l40s-deploy status" in err
    code, _, err = run(KeyboardInterrupt(), "--undo-on-interrupt")
    assert code == 130 and "has been stopped" in err


@pytest.mark.parametrize("goes_on", [True, False])
def test_interrupted_before_a_rank_started_it_does_not_say_that_it_continues(run: Run, goes_on: bool) -> None:
    code, _, err = run(Undone(("g1",), goes_on=goes_on))
    assert code == 130 and "no rank of g1 was started, and nothing of it is left" in err
    assert ("other gangs continue" in err) is goes_on and "everything" not in err
    assert "has been stopped" in run(Undone(("g1",), goes_on=False), "--undo-on-interrupt")[2]


def test_a_failure_names_the_node_and_rank_and_who_can_not_be_reached() -> None:
    lost = NodeView(
        name="c", node_rank=2, state=NodeState("unreachable"), error=Unreachable("no route", where="c", fix="look")
    )
    cause = Cause(node="b", tp_rank=19, text="TP19 was killed", lines=("last line",))
    failure = failure_of(GangView(name="g", state=GangState.FAILED, cause=cause, nodes=(lost,)))
    assert failure.where == "gang g: b TP19"
    assert failure.what.splitlines() == [
        "TP19 was killed",
        "    | last line",
        "    c can't be reached; it stops its own ranks when its lease expires",
    ]


def test_what_serves_is_shown_although_the_router_failed(run: Run) -> None:
    failure = NodeError("the router's environment is not there", where="head", fix="l40s-deploy prepare")
    failed = replace(outcome(), failure=failure)
    code, out, err = run(failed)
    assert code == 3 and "ready in 12.3 s; canary: 'Paris" in out
    assert err.rstrip().endswith("error: head: the router's environment is not there\n  fix: l40s-deploy prepare")
    code, out, err = run(failed, "--json")
    assert code == 3 and json.loads(out)["gangs"][0]["state"] == "ready"
    assert json.loads(err.splitlines()[-1])["error"]["where"] == "head"


def test_without_a_model_it_finishes_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY)
    done = (outcome().views, ("h was not reached",))
    asked: list[tuple[str, ...]] = []

    def resume(_: object, names: Sequence[str], *__: object, **___: object) -> object:
        asked.append(tuple(names))
        return done

    monkeypatch.setattr(verb, "connected", unconnected)
    monkeypatch.setattr(verb, "resume", resume)
    for typed in (["up", "-i", str(inventory), *named, "--no-golden"] for named in (["g"], ["--gang", "g"])):
        assert main(typed) == 0 and asked.pop() == ("g",)
        assert capsys.readouterr().out.splitlines() == ["finished: g", "h was not reached"]
    assert main([*typed, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["left"], [gang["name"] for gang in told["gangs"]]) == (["h was not reached"], ["g"])
    for option in ("--replace", "--strict", "--nettest", "--tp=2"):
        assert main([*typed, option]) == 2
        assert "no model was given" in capsys.readouterr().err
    assert len(asked) == 1


GLM = "GLM-4.6-FP8"
NAMED = [
    (GLM, (GLM, (), ())),
    (f"{GLM} --tp 8", (GLM, (), ())),
    (f"g {GLM}", (GLM, ("g",), ())),
    (f"--model {GLM} g", (GLM, ("g",), ())),
    (f"{GLM} --tp 8 -- --mem-fraction-static 0.8", (GLM, (), ("--mem-fraction-static", "0.8"))),
    (f"--model {GLM} -- --mem-fraction-static 0.8", (GLM, (), ("--mem-fraction-static", "0.8"))),
]


@pytest.mark.parametrize(("typed", "wanted"), NAMED, ids=[typed for typed, _ in NAMED])
def test_models_and_gangs_may_be_named_by_position(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, wanted: tuple[object, ...]
) -> None:
    asked: list[UpRequest] = []

    def up(_: object, request: UpRequest, __: object) -> UpResult:
        asked.append(request)
        return outcome(before=True)

    monkeypatch.setattr(verb, "up", up)
    assert main(["up", "-i", str(tmp_path / "hosts.yml"), *typed.split()]) == 0
    (plan,) = [request.plan for request in asked]
    assert (plan.model, plan.gangs, plan.extra_args) == wanted


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("GLM-4.6-FP", f"did you mean {GLM}"),
        ("gg", "no gang or model is called 'gg'"),
        (f"{GLM} {MODEL}", f"{MODEL} was named beside {GLM}"),
    ],
)
def test_a_name_of_neither_is_told_with_the_nearest(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    assert main(["up", "-i", str(tmp_path / "hosts.yml"), *typed.split()]) == 2
    assert said in capsys.readouterr().err


def test_the_gang_leads_a_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = RisingProgress(Screen())
    for words in ("g1 will not serve until it has restarted", "g10 is the leader's", "staging"):
        shown.step("g1", words)
    assert capsys.readouterr().err.splitlines() == [
        "g1 will not serve until it has restarted", "g1: g10 is the leader's", "g1: staging",
    ]  # fmt: skip


def test_gangs_that_run_the_same_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of()
    (first,) = plan.gangs
    other = replace(first, name="gang2", nodes=tuple(replace(node, stack="another") for node in first.nodes))
    RisingProgress(Screen()).planned(replace(plan, gangs=(first, replace(first, name="gang1"), other)))
    told = [line.partition(" by ")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("plan ")]
    assert told == [
        f"plan {plan.plan_id}: {first.name}, gang1 run {first.model}",
        f"plan {plan.plan_id}: gang2 runs {first.model}",
    ]


def test_no_phase_lasts_long_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for a gang, about the node that it waits for; silence ends with the start."""
    now = [100.0]
    monkeypatch.setattr("orchestrator.gang.commands.outcome.time.monotonic", lambda: now[0])
    shown = RisingProgress(Screen())
    node = NodeView(
        name="a", node_rank=0, state=NodeState.STARTING, alive=True, phase=Phase(name="graphs"), phase_s=20.0
    )
    nodes = (node, replace(node, name="b", phase_s=21.0))
    rising = GangView(name="g", state=GangState.STARTING, nodes=nodes)
    for later in (0.0, 9.0, 2.0, 9.0, 2.0):
        now[0] += later
        shown.seen([rising])
    said = capsys.readouterr().err.splitlines()
    first = ["g: a: starting, graphs", "g: b: starting, graphs"]
    assert said == [*first, "g: a: graphs: for 20 s", "g: a: graphs: for 20 s"]
    now[0] += 60.0
    shown.seen([replace(rising, state=GangState.READY)])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ("", "http://192.0.2.1:8000 (g)"),
        (", router: {hosts: {head: {ansible_host: 192.0.2.9}}}", "http://192.0.2.9:30000"),
    ],
)
def test_it_ends_with_the_address_that_clients_use(run: Run, tmp_path: Path, more: str, address: str) -> None:
    gangs = "gangs: {children: {g: {hosts: {a: , b: }}}}"
    (tmp_path / "hosts.yml").write_text(f"all: {{children: {{{gangs}{more}}}}}")
    done = outcome()
    served = tuple(replace(view, service_url="http://192.0.2.1:8000", service_healthy=True) for view in done.views)
    _, out, _ = run(replace(done, views=served))
    assert out.splitlines()[-1].startswith(f"clients use {address}")


def test_a_gang_that_hangs_is_not_called_ready_and_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Its nodes are ready, and it is not: once, with the cause, whose seconds go on; and once that it is again."""
    shown = RisingProgress(Screen())
    hangs = GangView(
        name="g",
        state=GangState.DEGRADED,
        trouble="hung",
        nodes=(NodeView(name="a", node_rank=0, state=NodeState.READY, alive=True),),
    )
    for seconds in (60, 61):
        shown.seen([replace(hangs, cause=Cause(node="a", text=f"TP3 waits for a disk, for {seconds} s"))])
    shown.seen([replace(hangs, state=GangState.READY, trouble="")])
    assert capsys.readouterr().err.splitlines() == [
        "g: a: ready", "g: degraded (hung): a: TP3 waits for a disk, for 60 s", "g: ready",
    ]  # fmt: skip
