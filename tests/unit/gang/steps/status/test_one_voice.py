"""What the doctor says against a serving gang's nodes is what `status`, `why`, the page, the report, a guard and its
messages say: the same id, node, title, effect and fix, over every broken machine that the rules are tested with. And
an Xid has one name and one fix, whoever reads it in the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.support.faults import FAULTS, ODD
from tests.support.healthy_cluster import HealthyNode, cluster_with

from orchestrator.doctor.commands.findings import document
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.doctor.steps.doctor import Examination, diagnose, forbidding, refuse
from orchestrator.doctor.steps.doctor_report import page_of
from orchestrator.engines.host_causes import HOST
from orchestrator.gang.commands.why import _told
from orchestrator.gang.guarding import GuardMemory, _at_peace
from orchestrator.gang.overview import Overview, status_json
from orchestrator.gang.remarks import sentence, with_findings
from orchestrator.gang.steps.checks import objection
from orchestrator.gang.steps.status.health import KeptFinding, kept
from orchestrator.gang.steps.status.history import Explanation, why_json
from orchestrator.gang.steps.status.live import Moment
from orchestrator.gang.view import GangView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.monitoring.notices import findings_news
from orchestrator.monitoring.steps.live_page import KeptPast, live_page
from orchestrator.node.engine.kernel_words import DeadProcess, reason
from orchestrator.protocol.errors import FindingsError
from orchestrator.protocol.xids import XIDS

READY = GangView(name="a", state=GangState.READY, service_url="http://n:1", service_healthy=True)


@pytest.fixture(scope="module")
def examined() -> dict[str, Examination]:
    return {fault.name: diagnose(cluster_with(ODD, fault.breaks, fault.trials), {}) for fault in FAULTS}


def stops(examined: dict[str, Examination]) -> Iterator[tuple[str, Examination, list[Finding]]]:
    """Of each machine on which something forbids a start."""
    for name, examination in examined.items():
        if against := forbidding(examination.findings, strict=False):
            yield name, examination, against


def test_what_is_kept_between_two_looks_is_the_finding(examined: dict[str, Examination]) -> None:
    for name, _, against in stops(examined):
        read = [KeptFinding.read(kept(one).as_json()) for one in against]
        assert [one.finding for one in read if isinstance(one, KeptFinding)] == against, name


def test_every_screen_says_what_the_doctor_says(examined: dict[str, Examination]) -> None:
    seen = 0
    for name, examination, against in stops(examined):
        view = with_findings(READY, against)
        asked = [one for one in document(examination)["findings"] if one["severity"] == "stop"]
        sentences = [sentence(one) for one in against]
        account = Explanation(gang="a", verdict=None, now=view, failures={})
        (page,) = live_page(Moment(taken_at=1.0, seen=Overview(views=(view,))), KeptPast(), None, "").gangs
        notices = [(one.text, one.fix) for one in findings_news({}, view, {}, 0.0).notices]
        report = {(one["id"], one["title"], one["effect"], one["fix"]) for one in page_of(examination)["findings"]}
        assert status_json((view,))["gangs"][0]["findings"] == asked, name
        assert why_json((account,))["gangs"][0]["findings"] == asked, name
        assert list(view.remarks) == list(page.remarks) == sentences, name
        assert {f"  {words}" for words in sentences} <= {str(line) for line in _told(account, False)}, name
        assert all(words in _at_peace(view, GuardMemory(), 0.0).reason for words in sentences), name
        assert {(one.id, one.title, one.effect, one.fix) for one in against} <= report, name
        assert len(notices) == len({(one.id, one.node, one.devices) for one in against}), name
        assert all(any(one.title in text and one.fix in fix for text, fix in notices) for one in against), name
        seen += len(against)
    assert seen > 10


def test_a_refused_start_says_what_the_doctor_says(examined: dict[str, Examination]) -> None:
    """`up` and `restart`, of the first that stands against it."""
    for name, examination, against in stops(examined):
        first = against[0]
        refusal = objection(examination, "a")
        with pytest.raises(FindingsError) as refused:
            refuse(against)
        assert refusal is not None and refusal.error.what == f"{first.id}: {first.title}", name
        assert refusal.error.fix == first.fix and refusal.accept.partition("@")[0] == first.id, name
        assert refused.value.what.startswith(f"{first.id}: {first.title}. {first.effect}"), name
        assert refused.value.fix.startswith(first.fix), name


@pytest.mark.parametrize("number", XIDS)
def test_an_xid_has_one_name_and_one_fix(number: int) -> None:
    """By the doctor, an agent, and `why` of a log that somebody gave."""
    xid, line = XIDS[number], f"NVRM: Xid (PCI:0000:9b:00): {number}, pid='<unknown>', name=<unknown>"

    def breaks(node: HealthyNode) -> None:
        node.host.update(kernel_log={"xid": [f"3,1201,73000,-;{line}"]})

    (by_doctor,) = [judged for judged in run_rules(cluster_with(ODD, breaks)) if judged.id == "GPU-XID"]
    by_agent = reason([f"3,1,9000000,-;{line}"], 10.0, DeadProcess(pid=1, gpu=5, place="0000:9b:00.0"))
    by_log = next(cause for cause in HOST if re.search(cause.pattern, line))
    words = f"{xid.what} (Xid {number})"
    assert by_doctor.title == f"GPU at 0000:9b:00 {words} since the last boot" and by_doctor.fix == xid.fix
    assert by_agent is not None and by_agent.text == f"GPU 5 {words}" and by_agent.fix == xid.fix
    assert by_log.text.endswith(xid.what) and by_log.fix == xid.fix
