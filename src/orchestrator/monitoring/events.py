"""What has happened to a gang since the last notice: one notice for each change, none for a repetition."""

from __future__ import annotations

from orchestrator.gang.overview import degraded_reason
from orchestrator.gang.rails import restart_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.notice import Notice
from orchestrator.model.notify import Event

WELL = "well"
RAILS = "degraded rails"


def news(told: str, view: GangView, at: float) -> tuple[Notice | None, str]:
    """(what to tell, what has then been told). told: this function's last word on this gang, '' at the first look.

    A gang that starts, stops or is absent is on its way: nothing is told, and what it was before still counts. An RDMA
    port that is back is told of once: that it fails again changes nothing for a gang that does not use it.
    """
    word = _word(view)
    if word.startswith(RAILS) and told.startswith(RAILS):
        word = ", ".join(dict.fromkeys([*told.split(", "), *word.split(", ")]))
    if word in ("", told):
        return None, told
    if word == WELL:
        known = told.partition(" ")[0]
        back = Notice(event=Event.RESTORED, subject=view.name, text=f"It serves again (it was {known}).", at=at)
        return (back if known else None), word
    return _trouble(view, at), word


def _word(view: GangView) -> str:
    """failed RUN, degraded REASON (rails: with the ports that are back), well, or '' for none of these."""
    if view.state is GangState.FAILED:
        return f"failed {view.run_id}"
    reason = degraded_reason(view)
    if reason:
        back = [f"{node.name} {rail.port}" for node in view.nodes for rail in node.rails if rail.up]
        return ", ".join([f"degraded {reason}", *(back if reason == "rails" else ())])
    return WELL if view.serves else ""


def _trouble(view: GangView, at: float) -> Notice:
    cause = view.cause
    reason = degraded_reason(view)
    if reason == "rails" and view.rails_back:
        text = f"{reason}: {'; '.join(view.rails_back[:3])}"
        return Notice(event=Event.DEGRADED, subject=view.name, text=text, fix=restart_of(view.name), at=at)
    if view.state is not GangState.FAILED:
        text = f"{reason}: {cause.text if cause else '; '.join(view.remarks[:3]) or view.trouble}"
        return Notice(event=Event.DEGRADED, subject=view.name, text=text, fix=cause.fix if cause else "", at=at)
    place = f"{cause.node}{'' if cause.tp_rank is None else f' TP{cause.tp_rank}'}: " if cause else ""
    return Notice(
        event=Event.FAILED,
        subject=view.name,
        text=f"{place}{cause.text if cause else 'the cause is not known'}",
        fix=cause.fix if cause else f"l40s-deploy why {view.name}",
        at=at,
    )
