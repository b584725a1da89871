"""One message for each event, none for a repetition."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator.gang.remarks import of_certificate, powerless, with_findings
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import Event, ReceiverKind
from orchestrator.model.notice import Notice
from orchestrator.monitoring.notices import QUIET_S, address, body, findings_news, news, refused
from orchestrator.protocol.errors import Unreachable, WithoutFiles
from orchestrator.protocol.report import Cause, RailChange
from orchestrator.protocol.severity import Severity

READY = GangView(name="g", state=GangState.READY, run_id="r1", service_healthy=True)
CAUSE = Cause(node="node1", tp_rank=3, text="killed", fix="look")
FAILED = replace(READY, state=GangState.FAILED, cause=CAUSE, service_healthy=None)
STARTING = replace(READY, state=GangState.STARTING, run_id="r2", service_healthy=None)
SILENT = replace(READY, state=GangState.DEGRADED, trouble="silent")
ABSENT = replace(READY, state=GangState.ABSENT, service_healthy=None)
ENDED = replace(ABSENT, trouble="ended")
UNHEARD = replace(READY, state=GangState.UNKNOWN, trouble="unheard", service_healthy=None)
DOWN = replace(ABSENT, ordered=("node0",))
HUNG = replace(READY, state=GangState.DEGRADED, trouble="hung", cause=CAUSE)


def events(*views: GangView) -> list[Event]:
    told, found = "", []
    for view in views:
        notice, told = news(told, view, 1.0)
        found += [notice.event] if notice else []
    return found


@pytest.mark.parametrize(
    ("views", "wanted"),
    [
        ([READY, READY], []),
        ([READY, FAILED, FAILED, STARTING, READY], [Event.FAILED, Event.RESTORED]),
        ([READY, HUNG, HUNG, READY], [Event.DEGRADED, Event.RESTORED]),
        ([FAILED], [Event.FAILED]),
        ([STARTING, READY], []),
        ([READY, FAILED, STARTING, replace(FAILED, run_id="r2")], [Event.FAILED, Event.FAILED]),
        ([HUNG, FAILED, READY], [Event.DEGRADED, Event.FAILED, Event.RESTORED]),
        ([READY, ABSENT, READY], []),
        ([READY, ENDED, ENDED, STARTING, READY], [Event.FAILED, Event.RESTORED]),
        ([HUNG, ENDED, READY], [Event.DEGRADED, Event.FAILED, Event.RESTORED]),
        ([ENDED, READY], []),
        ([READY, SILENT, HUNG, SILENT, FAILED, READY], [Event.DEGRADED, Event.FAILED, Event.RESTORED]),
        ([READY, UNHEARD, FAILED, STARTING, READY], [Event.FAILED, Event.RESTORED]),
        ([READY, UNHEARD, READY], [Event.FAILED, Event.RESTORED]),
        ([READY, DOWN, STARTING, ENDED, READY], []),
        ([READY, FAILED, ENDED, DOWN, READY], [Event.FAILED, Event.RESTORED]),
    ],
)
def test_what_is_told(views: list[GangView], wanted: list[Event]) -> None:
    assert events(*views) == wanted


def on_rails(*rails: tuple[str, str, bool]) -> GangView:
    """A gang that serves although ports of these nodes failed: node, port, whether it is back."""
    nodes = tuple(
        NodeView(name=name, node_rank=rank, state=NodeState.READY, rails=(RailChange(port=port, up=up, at=1.0),))
        for rank, (name, port, up) in enumerate(rails)
    )
    return replace(READY, nodes=nodes)


def test_an_rdma_port_that_is_back_is_told_of_once_with_the_restart_that_it_takes() -> None:
    gone, back = on_rails(("node1", "mlx5_1:1", False)), on_rails(("node1", "mlx5_1:1", True))
    assert events(gone, gone) == [Event.DEGRADED]
    assert events(gone, back, back, gone, back) == [Event.DEGRADED] * 2, "one that comes and goes is no news"
    assert events(gone, back, READY, gone) == [Event.DEGRADED, Event.DEGRADED, Event.RESTORED, Event.DEGRADED]
    other = on_rails(("node1", "mlx5_1:1", True), ("node2", "mlx5_0:1", True))
    assert events(gone, back, other, back) == [Event.DEGRADED] * 3
    notice, told = news("degraded rails", back, 7.0)
    assert notice is not None and told.startswith("degraded rails")
    assert "node1: RDMA port mlx5_1:1 is back" in notice.text
    assert notice.fix == "l40s-deploy restart g"


def test_a_failure_names_node_rank_and_fix() -> None:
    notice, _ = news("", FAILED, 7.0)
    assert notice is not None
    assert (notice.text, notice.fix, notice.at) == ("node1 TP3: killed", "look", 7.0)


NOTICE = Notice(event=Event.FAILED, subject="gang0", text="node1 TP3: <killed> & gone", fix="look", at=5.0)
TEXT = "[l40s-deploy] gang0: failed\nnode1 TP3: <killed> & gone\nFix: look"


def test_each_kind_has_its_own_keys() -> None:
    assert body(ReceiverKind.SLACK, NOTICE) == {
        "text": TEXT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    }
    assert body(ReceiverKind.FEISHU, NOTICE) == {"msg_type": "text", "content": {"text": TEXT}}
    assert (
        body(ReceiverKind.DINGTALK, NOTICE)
        == body(ReceiverKind.WECOM, NOTICE)
        == {"msgtype": "text", "text": {"content": TEXT}}
    )
    assert body(ReceiverKind.WEBHOOK, NOTICE) == {
        "event": "failed", "subject": "gang0", "title": "gang0: failed", "text": NOTICE.text, "fix": "look", "at": 5.0,
    }  # fmt: skip


def test_feishu_s_signature_is_made_with_time_and_secret_as_the_key() -> None:
    signed = body(ReceiverKind.FEISHU, NOTICE, sign="s3cret", at=1599360473.9)
    wanted = hmac.digest(b"1599360473\ns3cret", b"", hashlib.sha256)
    assert signed["timestamp"] == "1599360473" and base64.b64decode(signed["sign"]) == wanted


def test_dingtalk_s_signature_is_part_of_the_address() -> None:
    url = address(ReceiverKind.DINGTALK, "https://oapi.example.org/robot/send?access_token=t", sign="SEC1", at=1.5)
    asked = parse_qs(urlsplit(url).query)
    wanted = hmac.digest(b"SEC1", b"1500\nSEC1", hashlib.sha256)
    assert asked["timestamp"] == ["1500"] and base64.b64decode(asked["sign"][0]) == wanted
    assert asked["access_token"] == ["t"]
    assert address(ReceiverKind.SLACK, "https://a", sign="SEC1", at=1.5) == "https://a"


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (ReceiverKind.SLACK, None, ""),
        (ReceiverKind.FEISHU, {"code": 0, "msg": "success"}, ""),
        (ReceiverKind.FEISHU, {"StatusCode": 0, "StatusMessage": "success"}, ""),
        (ReceiverKind.FEISHU, {"code": 19021, "msg": "sign match fail"}, "code 19021 sign match fail"),
        (ReceiverKind.DINGTALK, {"errcode": 310000, "errmsg": "keywords not in content"}, "code 310000 keywords"),
        (ReceiverKind.WECOM, {"errcode": 0, "errmsg": "ok"}, ""),
        (ReceiverKind.WECOM, None, "no JSON"),
    ],
)
def test_a_refusal_comes_with_http_200(kind: ReceiverKind, answer: object, words: str) -> None:
    found = refused(kind, answer)
    assert words in found if words else found == ""


def test_a_long_text_is_cut_where_a_receiver_would_refuse_it() -> None:
    long = Notice(event=Event.FINDING, subject="g", text="\u957f" * 5000)
    assert len(body(ReceiverKind.WECOM, long)["text"]["content"].encode()) <= 4096


def test_a_gang_of_which_no_node_answers_is_told_of_once_and_so_is_its_end() -> None:
    unknown = replace(UNHEARD, trouble="")
    assert events(READY, unknown, READY) == [], "its lease has not passed"
    assert events(READY, unknown, UNHEARD, UNHEARD, READY) == [Event.FAILED, Event.RESTORED]
    assert events(READY, UNHEARD, FAILED, STARTING, READY) == [Event.FAILED, Event.RESTORED]
    gone = Unreachable("no answer within 9 s", where="node0", fix="look")
    node = NodeView(name="node0", node_rank=0, state=NodeState.UNREACHABLE, error=gone)
    notice, _ = news("well", replace(UNHEARD, nodes=(node,) * 5), 1.0)
    assert notice is not None and "node0 (no answer within 9 s)" in notice.text and notice.text.endswith("and 2 more")
    assert notice.text.startswith("no node of it answers, so that nobody knows whether it serves: ")


def test_a_gang_whose_nodes_answer_and_know_nothing_is_told_of_without_saying_that_they_are_silent() -> None:
    lost = WithoutFiles("its agent runs without files", where="node0", fix="down")
    node = NodeView(name="node0", node_rank=0, state=NodeState.UNKNOWN, error=lost)
    notice, _ = news("well", replace(UNHEARD, nodes=(node,)), 1.0)
    assert notice is not None
    assert notice.text == "nobody knows whether it serves: node0 (its agent runs without files)"


ECC = Finding(id="GPU-ECC", severity=Severity.STOP, node="node1", devices=("GPU3",), title="GPU3 lost data", fix="swap")


def findings_told(*looks: tuple[GangView, float]) -> list[str]:
    """What is told of findings over several looks, each with how long those that are gone were not seen."""
    told: dict[str, str] = {}
    heard: list[str] = []
    for view, gone_s in looks:
        found = findings_news(told, view, dict.fromkeys(told, gone_s), 1.0)
        told = dict(found.told)
        heard += [f"{one.event.value}: {one.text}" for one in found.notices]
    return heard


def test_a_finding_is_told_once_at_its_beginning_and_once_at_its_end() -> None:
    sick = with_findings(READY, [ECC])
    begun, ended = "finding: GPU-ECC: node1: GPU3 lost data", "restored: No more: GPU-ECC: node1: GPU3 lost data"
    assert findings_told((sick, 0), (sick, 0)) == [begun]
    assert findings_told((sick, 0), (READY, QUIET_S), (READY, QUIET_S)) == [begun, ended]
    assert findings_told((sick, 0), (READY, 9), (sick, 0), (READY, 9), (sick, 0)) == [begun], "it flaps"
    retitled = with_findings(READY, [replace(ECC, title="GPU3 lost more data")])
    assert findings_told((sick, 0), (retitled, 0)) == [begun]
    assert findings_told((sick, 0), (STARTING, 9999), (sick, 0)) == [begun], "nobody asked while it did not serve"
    assert findings_told((sick, 0), (replace(READY, name="other"), 9999)) == [begun], "another gang ends nothing"


def test_a_certificate_is_told_of_once_before_it_expires_and_again_once_it_is_renewed() -> None:
    now = datetime(2026, 11, 28, tzinfo=timezone.utc)
    soon = with_findings(READY, of_certificate(now + timedelta(days=13), now, None, "l40s_router_tls_cert"))
    later = with_findings(READY, of_certificate(now + timedelta(days=12), now, None, "l40s_router_tls_cert"))
    begun, ended = findings_told((soon, 0), (later, 0), (READY, QUIET_S))
    assert begun.startswith("finding: CERT-EXPIRES") and ended.startswith("restored: No more: CERT-EXPIRES")


def test_a_guard_without_power_is_told_of_once_a_run_and_ends_with_the_gang_that_serves() -> None:
    weak = with_findings(FAILED, [powerless(FAILED, "its lock is held", "look")])
    (first,) = findings_told((weak, 0), (weak, 0), (READY, 0))
    assert first.startswith("finding: GUARD-POWERLESS: g has to be restarted, and the guard can't: its lock is held")
    assert len(findings_told((weak, 0), (READY, 0), (weak, 0))) == 2


def test_a_degraded_gangs_message_has_no_finding_that_had_its_own() -> None:
    old = Finding(id="GPU-MODE", severity=Severity.SLOW, node="node1", title="persistence mode is off")
    slow = replace(READY, state=GangState.DEGRADED, trouble="slow", remarks=("node2 decodes at half speed",))
    notice, _ = news("", with_findings(slow, [old]), 1.0)
    assert notice is not None and notice.text == "slow: node2 decodes at half speed"
    notice, _ = news("", with_findings(replace(slow, remarks=()), [old]), 1.0)
    assert notice is not None and notice.text == "slow: slow"
