"""A notice in each receiver's format, and the meaning of its answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator.model.notice import Notice
from orchestrator.model.notify import Event, ReceiverKind
from orchestrator.monitoring.wording import address, body, refused

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
