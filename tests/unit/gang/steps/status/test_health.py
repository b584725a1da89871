"""What the doctor would refuse a restart for is a remark wherever a gang that serves is shown, asked once a minute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.gang.commands.why import _told
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.remarks import unaccepted, with_findings
from orchestrator.gang.steps import checks
from orchestrator.gang.steps.guard.watches import HealthWatch
from orchestrator.gang.steps.status import health as asking
from orchestrator.gang.steps.status.health import health, with_health
from orchestrator.gang.steps.status.history import Explanation
from orchestrator.gang.steps.status.overview import with_entries
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.protocol.errors import Exit, Unreachable
from orchestrator.protocol.severity import Severity

ECC = Finding(id="GPU-ECC", severity=Severity.STOP, node="n", devices=("GPU3",), title="GPU3 lost data", fix="swap it")
GANG = GangSpec(name="a", nodes=(NodeSpec(name="n", gang="a", node_rank=0, reach=Reach(host="none")),))
READY = GangView(name="a", state=GangState.READY, service_url="http://n:1", service_healthy=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(asking, "as_it_runs", lambda gang, _: gang)


class Doctor:
    """Answers in turn, and counts how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[tuple[Finding, ...], frozenset[str]]) -> None:
        self.answers, self.asked = list(answers), 0
        monkeypatch.setattr(checks, "standing_stops", self.says)

    def says(self, *_: object) -> tuple[tuple[Finding, ...], frozenset[str]]:
        self.asked += 1
        return self.answers.pop(0)


def test_it_is_asked_once_a_minute_for_all_who_want_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = Doctor(monkeypatch, ((ECC,), frozenset()))
    (seen,) = with_health("hosts.yml", [GANG], [READY])
    assert seen.remarks == ("n: GPU3 lost data [GPU-ECC] (fix: swap it)",)
    assert [(one.id, one.node, one.devices) for one in seen.findings] == [("GPU-ECC", "n", ("GPU3",))]
    guard = HealthWatch("hosts.yml")
    guard.ask_if_due(GANG, "r1", 0.0, wait=True)
    assert [one.id for one in guard.findings] == ["GPU-ECC"] and doctor.asked == 1


def test_a_node_that_does_not_answer_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FRESH_S", 0.0)
    Doctor(monkeypatch, ((ECC,), frozenset()), ((), frozenset({"n", ""})), ((), frozenset()))
    known = [[one.id for one in health("hosts.yml", GANG)] for _ in range(3)]
    assert known == [["GPU-ECC"], ["GPU-ECC"], []]


def test_a_gang_that_does_not_serve_is_not_asked_and_a_failure_hides_no_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise Unreachable("gone", where="n", fix="look")

    monkeypatch.setattr(checks, "standing_stops", fails)
    failed = GangView(name="a", state=GangState.FAILED)
    assert with_health("hosts.yml", [GANG], [READY, failed]) == (READY, failed)


def test_a_gang_that_serves_and_is_out_of_the_router_has_a_remark() -> None:
    router = RouterGlance(url="http://r", node="r", state=GangState.READY, workers=())
    (seen,) = with_entries(Overview(views=(READY,), router=router), [GANG]).views
    assert [one.id for one in seen.findings] == ["ROUTER-ENTRY-MISSING"] and "l40s-deploy router up" in seen.remarks[0]
    unknown = RouterGlance(url="http://r", node="r")
    assert with_entries(Overview(views=(READY,), router=unknown), [GANG]).views == (READY,)


def test_what_the_inventory_accepts_is_no_remark_and_not_counted() -> None:
    router = RouterGlance(url="http://r", node="r", state=GangState.READY, workers=())
    nodes = tuple(replace(node, accept=("ROUTER-ENTRY-MISSING", "GPU-ECC@n")) for node in GANG.nodes)
    accepting = replace(GANG, nodes=nodes)
    assert with_entries(Overview(views=(READY,), router=router), [accepting]).views == (READY,)
    (unread,) = views_of([accepting], {}, {"n": Unreachable("gone", where="n", fix="look")})
    seen = Overview(views=(replace(READY, accepted=unread.accepted),), router=router)
    assert seen.reason(seen.views[0]) == "" and seen.exit_code is Exit.DONE
    assert Overview(views=(READY,), router=router).reason(READY) == "router"
    assert unaccepted([ECC], accepting) == () and unaccepted([ECC], GANG) == (ECC,)
    assert unaccepted([replace(ECC, node="other")], accepting) == (replace(ECC, node="other"),)


def test_what_is_accepted_since_is_no_remark_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = Doctor(monkeypatch, ((ECC,), frozenset()))
    assert health("hosts.yml", GANG) == (ECC,)
    nodes = tuple(replace(node, accept=("GPU-ECC",)) for node in GANG.nodes)
    assert health("hosts.yml", replace(GANG, nodes=nodes)) == () and doctor.asked == 1


def test_why_says_what_is_wrong_about_a_gang_that_serves() -> None:
    account = Explanation(gang="a", verdict=None, now=with_findings(READY, [ECC]), failures={})
    assert list(_told(account, everything=False)) == [
        "a: ready now, and not well:",
        "  n: GPU3 lost data [GPU-ECC] (fix: swap it)",
        "a: no recorded run has failed",
    ]
