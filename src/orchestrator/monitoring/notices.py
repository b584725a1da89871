"""What people are told of a gang: one notice for each change, none for a repetition, as each receiver wants it. Pure:
signatures are made for a given time.

Sources: Slack, Sending messages using incoming webhooks (three characters are its own); Feishu, Custom bot guide
(signature: HMAC-SHA256 of nothing with the key `timestamp\\nsecret`); DingTalk, Custom robot access (HMAC-SHA256 of
`timestamp\\nsecret` with the secret, in milliseconds); WeCom, Group robot configuration.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote_plus

from orchestrator.gang.overview import degraded_reason
from orchestrator.gang.paths import restart_of
from orchestrator.gang.remarks import POWERLESS, sentence
from orchestrator.gang.view import ENDED, UNHEARD, GangView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Event, ReceiverKind
from orchestrator.model.notice import Notice
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import Unreachable

WELL = "well"
ENDED_WORDS = "it has ended in good order, and no command ended it: a machine of it shuts down, or its agent was ended"
RAILS = "degraded rails"
STANDS_STILL = {"degraded silent", "degraded hung"}


def news(told_before: str, view: GangView, at: float) -> tuple[Notice | None, str]:
    """(what to tell, what has then been told). told: this function's last word on this gang, '' at the first look.

    A gang that starts, stops or is absent is on its way: nothing is told, and what it was before still counts. One that
    served and was ended by a person is forgotten; one that ended without anybody's order is told of. An RDMA port that
    is back is told of once: that it fails again changes nothing for a gang that does not use it.
    """
    if view.state is GangState.ABSENT and view.ordered and told_before == WELL:
        return None, ""
    word = _word(view)
    if word.startswith(ENDED) and not told_before.startswith((WELL, Event.DEGRADED.value)):
        return None, told_before
    if word.startswith(RAILS) and told_before.startswith(RAILS):
        word = ", ".join(dict.fromkeys([*told_before.split(", "), *word.split(", ")]))
    if word in ("", told_before):
        return None, told_before
    if _is_one_cause(told_before, word):
        return None, word
    if word == WELL:
        known = told_before.partition(" ")[0]
        back = Notice(event=Event.RESTORED, subject=view.name, text=f"It serves again (it was {known}).", at=at)
        return (back if known else None), word
    return _trouble(view, at), word


def _is_one_cause(before: str, now: str) -> bool:
    """Whether people know it by another word: what ended a gang while none of its nodes answered; and a gang that
    stands still, whichever of both it is called."""
    unheard = before == UNHEARD and now.startswith(GangState.FAILED.value)
    return unheard or {before, now} <= STANDS_STILL


def _word(view: GangView) -> str:
    """failed RUN, ended RUN, unheard, degraded REASON (rails: with the ports that are back), well, '' for nothing."""
    if view.state is GangState.UNKNOWN and view.trouble == UNHEARD:
        return UNHEARD
    if view.state is GangState.FAILED:
        return f"failed {view.run_id}"
    if view.state is GangState.ABSENT and view.trouble == ENDED:
        return f"{ENDED} {view.run_id}"
    if reason := degraded_reason(view):
        back = [f"{node.name} {rail.port}" for node in view.nodes for rail in node.rails if rail.up]
        return ", ".join([f"degraded {reason}", *(back if reason == "rails" else ())])
    return WELL if view.serves else ""


def _trouble(view: GangView, at: float) -> Notice:
    cause, reason, event = view.cause, degraded_reason(view), Event.DEGRADED
    fix = cause.fix if cause else ""
    if view.state is GangState.UNKNOWN:
        event, text, fix = Event.FAILED, _unheard(view), f"l40s-deploy status {view.name}"
    elif view.trouble == ENDED:
        event, text, fix = Event.FAILED, ENDED_WORDS, restart_of(view.name)
    elif reason == "rails" and (back := view.rail_words(back=True)):
        text, fix = f"{reason}: {'; '.join(back[:3])}", restart_of(view.name)
    elif view.state is not GangState.FAILED:
        text = f"{reason}: {cause.text if cause else _own_remarks(view) or view.trouble}"
    elif cause is not None:
        rank = "" if cause.tp_rank is None else f" TP{cause.tp_rank}"
        event, text = Event.FAILED, f"{cause.node}{rank}: {cause.text}"
    else:
        event, text, fix = Event.FAILED, "the cause is not known", f"l40s-deploy why {view.name}"
    return Notice(event=event, subject=view.name, text=text, fix=fix, at=at)


def _own_remarks(view: GangView) -> str:
    """What the gang says of itself; findings have messages of their own, most of them long ago."""
    known = {*map(sentence, view.findings)}
    return "; ".join([remark for remark in view.remarks if remark not in known][:3])


def _unheard(view: GangView) -> str:
    lost = [f"{node.name} ({node.error.what})" for node in view.nodes if node.error is not None]
    more = f", and {len(lost) - 3} more" if len(lost) > 3 else ""
    silent = all(isinstance(node.error, Unreachable) for node in view.nodes if node.error is not None)
    start = "no node of it answers, so that nobody knows" if silent else "nobody knows"
    return f"{start} whether it serves: {', '.join(lost[:3])}{more}"


QUIET_S = 300.0
"""A finding has ended when it was gone for this long: one that comes and goes is one message."""


def _gone_for_good(keys: Sequence[str], gone_s: Mapping[str, float]) -> list[str]:
    return [key for key in keys if gone_s.get(key, 0.0) >= QUIET_S]


def findings_news(
    told_before: Mapping[str, str], view: GangView, gone_s: Mapping[str, float], at: float
) -> FindingsNews:
    """What to tell of a gang's findings. told: the title of each that people know, by its key; gone_s: for how many
    seconds each of these was gone.

    While a gang does not serve, no finding ends: nobody asked for it. A guard without power ends when its gang serves,
    which is a message of its own.
    """
    now = collected((finding_key(view.name, finding), finding) for finding in view.findings)
    new = {key: findings for key, findings in now.items() if key not in told_before}
    gone = _gone(told_before, view, now)
    powerless = {key for key in gone if key.startswith(f"{view.name} {POWERLESS}")}
    ended = _gone_for_good([key for key in gone if key not in powerless], gone_s)
    begun = tuple(_begun(view.name, findings, at) for findings in new.values())
    over = tuple(
        Notice(event=Event.RESTORED, subject=view.name, text=f"No more: {told_before[key]}", at=at) for key in ended
    )
    known = {**told_before, **{key: _found(findings) for key, findings in new.items()}}
    for key in (*ended, *powerless):
        del known[key]
    return FindingsNews((*begun, *over), known)


def _gone(told_before: Mapping[str, str], view: GangView, now: Collection[str]) -> list[str]:
    """Keys of what was told of a gang that serves, and is not found any more."""
    return [key for key in told_before if view.serves and key.startswith(f"{view.name} ") and key not in now]


def _begun(gang: str, findings: Sequence[Finding], at: float) -> Notice:
    fixes = dict.fromkeys(finding.fix for finding in findings if finding.fix)
    return Notice(event=Event.FINDING, subject=gang, text=_found(findings), fix="; ".join(fixes), at=at)


def finding_key(gang: str, finding: Finding) -> str:
    """The same finding at another look has the same one."""
    return " ".join([gang, finding.id, finding.node, *finding.devices])


def _found(findings: Sequence[Finding]) -> str:
    """Of one rule about the same devices: one message says all of them."""
    first = findings[0]
    place = f"{first.node}: " if first.node else ""
    return f"{first.id}: {place}{'; '.join(dict.fromkeys(finding.title for finding in findings))}"


@dataclass(frozen=True, slots=True)
class FindingsNews:
    """Messages, and what has been told once they are sent."""

    notices: tuple[Notice, ...]
    told: Mapping[str, str]


LONGEST = 3500
"""Characters; WeCom takes 4096 bytes of UTF-8 and DingTalk 20,000."""


def body(kind: ReceiverKind, notice: Notice, *, sign: str = "", at: float = 0.0) -> dict[str, Any]:
    """The JSON document for a webhook. sign: the key of a signed Feishu robot, '' for none; at: epoch seconds."""
    text = plain(notice)
    if kind is ReceiverKind.SLACK:
        return {"text": html.escape(text, quote=False)}
    if kind is ReceiverKind.FEISHU:
        return {**_feishu_signature(sign, at), "msg_type": "text", "content": {"text": text}}
    if kind is ReceiverKind.DINGTALK:
        return {"msgtype": "text", "text": {"content": text}}
    if kind is ReceiverKind.WECOM:
        return {"msgtype": "text", "text": {"content": text.encode()[:LONGEST].decode("utf-8", "ignore")}}
    return {**asdict(notice), "event": notice.event.value, "title": notice.title}


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
    reason = answer.get("errmsg") or answer.get("msg") or ""
    return "" if code in (0, None) else f"code {str(code)[:20]} {str(reason)[:200]}".strip()


def plain(notice: Notice) -> str:
    """Title, text and fix, as lines."""
    lines = [f"[l40s-deploy] {notice.title}", notice.text, f"Fix: {notice.fix}" if notice.fix else ""]
    return "\n".join(line for line in lines if line)[:LONGEST]


def _feishu_signature(sign: str, at: float) -> dict[str, str]:
    if not sign:
        return {}
    stamp = str(int(at))
    code = hmac.new(f"{stamp}\n{sign}".encode(), b"", hashlib.sha256).digest()
    return {"timestamp": stamp, "sign": base64.b64encode(code).decode("ascii")}
