"""What has happened to a gang since it was told of last: one notice for each change, and none for the same again."""

from __future__ import annotations

from orchestrator.gang.degraded import degraded_reason
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.notify import Event, Notice

WELL = "well"


def news(told: str, view: GangView, at: float) -> tuple[Notice | None, str]:
    """(what to tell, what has then been told). told: this function's last word on this gang, '' at the first look.

    A gang that starts, stops or is absent is on its way: nothing is told, and what it was before still counts.
    """
    word = _word(view)
    if word in ("", told):
        return None, told
    if word == WELL:
        known = told.partition(" ")[0]
        back = Notice(event=Event.RESTORED, subject=view.name, text=f"It serves again (it was {known}).", at=at)
        return (back if known else None), word
    return _trouble(view, at), word


def _word(view: GangView) -> str:
    """failed RUN, degraded REASON, well, or '' for none of these."""
    if view.state is GangState.FAILED:
        return f"failed {view.run_id}"
    reason = degraded_reason(view)
    if reason:
        return f"degraded {reason}"
    return WELL if view.serves else ""


def _trouble(view: GangView, at: float) -> Notice:
    cause = view.cause
    if view.state is not GangState.FAILED:
        text = f"{degraded_reason(view)}: {cause.text if cause else '; '.join(view.remarks[:3]) or view.trouble}"
        return Notice(event=Event.DEGRADED, subject=view.name, text=text, fix=cause.fix if cause else "", at=at)
    place = f"{cause.node}{'' if cause.tp_rank is None else f' TP{cause.tp_rank}'}: " if cause else ""
    return Notice(
        event=Event.FAILED,
        subject=view.name,
        text=f"{place}{cause.text if cause else 'the cause is not known'}",
        fix=cause.fix if cause else f"l40s-deploy why --gang {view.name}",
        at=at,
    )
