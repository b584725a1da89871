"""A notice as each receiver's own message. Pure: signatures are made for a given time.

Sources: Slack, Sending messages using incoming webhooks; Feishu, Custom bot guide (signature: HMAC-SHA256 of nothing
with the key `timestamp\\nsecret`); DingTalk, Custom robot access (HMAC-SHA256 of `timestamp\\nsecret` with the secret,
in milliseconds); WeCom, Group robot configuration.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any
from urllib.parse import quote_plus

from orchestrator.model.notice import Notice
from orchestrator.model.notify import ReceiverKind

LONGEST = 3500
"""Characters; WeCom takes 4096 bytes of UTF-8 and DingTalk 20,000."""


def body(kind: ReceiverKind, notice: Notice, *, sign: str = "", at: float = 0.0) -> dict[str, Any]:
    """The JSON document for a webhook. sign: the key of a signed Feishu robot, '' for none; at: epoch seconds."""
    text = plain(notice)
    if kind is ReceiverKind.SLACK:
        return {"text": _slack(text)}
    if kind is ReceiverKind.FEISHU:
        return {**_feishu_signature(sign, at), "msg_type": "text", "content": {"text": text}}
    if kind is ReceiverKind.DINGTALK:
        return {"msgtype": "text", "text": {"content": text}}
    if kind is ReceiverKind.WECOM:
        return {"msgtype": "text", "text": {"content": text.encode()[:LONGEST].decode("utf-8", "ignore")}}
    return {
        "event": notice.event.value,
        "subject": notice.subject,
        "title": notice.title,
        "text": notice.text,
        "fix": notice.fix,
        "at": notice.at,
    }


def address(kind: ReceiverKind, url: str, *, sign: str = "", at: float = 0.0) -> str:
    """Where it is sent: a signed DingTalk robot wants time and signature in the address."""
    if kind is not ReceiverKind.DINGTALK or not sign:
        return url
    stamp = str(round(at * 1000))
    code = hmac.new(sign.encode(), f"{stamp}\n{sign}".encode(), hashlib.sha256).digest()
    return f"{url}{'&' if '?' in url else '?'}timestamp={stamp}&sign={quote_plus(base64.b64encode(code))}"


def refused(kind: ReceiverKind, answer: object) -> str:
    """'' if the receiver accepted it, else its answer. Feishu, DingTalk and WeCom refuse with HTTP 200."""
    if kind not in (ReceiverKind.FEISHU, ReceiverKind.DINGTALK, ReceiverKind.WECOM):
        return ""
    if not isinstance(answer, dict):
        return "an answer that is no JSON object"
    code = answer.get("errcode", answer.get("code", answer.get("StatusCode", 0)))
    said = answer.get("errmsg") or answer.get("msg") or ""
    return "" if code in (0, None) else f"code {str(code)[:20]} {str(said)[:200]}".strip()


def plain(notice: Notice) -> str:
    """Title, text and fix, as lines."""
    lines = [f"[l40s-deploy] {notice.title}", notice.text, f"Fix: {notice.fix}" if notice.fix else ""]
    return "\n".join(line for line in lines if line)[:LONGEST]


def _slack(text: str) -> str:
    """Three characters are Slack's own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _feishu_signature(sign: str, at: float) -> dict[str, str]:
    if not sign:
        return {}
    stamp = str(int(at))
    code = hmac.new(f"{stamp}\n{sign}".encode(), b"", hashlib.sha256).digest()
    return {"timestamp": stamp, "sign": base64.b64encode(code).decode("ascii")}
