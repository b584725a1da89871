"""Why a node is not heard: the machine, the link between the nodes, the agent, or only SSH. Pure.

There are two paths to a node: SSH from the controller, and the leader link from the other nodes. It takes both to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from orchestrator.model.errors import DeployError, Unreachable
from orchestrator.protocol.report import Report


class Contact(str, Enum):
    """FINE; SSH: only SSH to it is broken; NODE: neither path answers; LINK: SSH answers, but other agents do not hear
    it; AGENT: the machine answers but its agent is stuck; UNKNOWN: SSH is broken, and no other node reports."""

    FINE = ""
    SSH = "ssh"
    NODE = "node"
    LINK = "link"
    AGENT = "agent"
    UNKNOWN = "unknown"


def contact(name: str, error: DeployError | None, current: Mapping[str, Report], *, stuck: bool) -> Contact:
    """Which path to a node is broken. error: why SSH failed; stuck: its agent is alive but has long written nothing."""
    if error is None and stuck:
        return Contact.AGENT
    if error is None:
        return Contact.LINK if "silent" in fellows(name, current).values() else Contact.FINE
    if not isinstance(error, Unreachable):
        return Contact.FINE  # it answers by SSH, though with an unusable answer
    heard = _heard(name, current)
    if "heard" in heard.values():
        return Contact.SSH
    return Contact.NODE if set(heard.values()) - {"ended"} else Contact.UNKNOWN


def fellows(name: str, current: Mapping[str, Report]) -> dict[str, str]:
    """What the live agents of other nodes report about their link with this one: heard, silent, lost, ended."""
    told = {other: report.links.get(name) for other, report in current.items() if report.alive and other != name}
    return {other: word for other, word in told.items() if word is not None}


def sentence(name: str, found: Contact, error: DeployError | None, current: Mapping[str, Report]) -> str:
    """For the operator; '' if nothing is wrong."""
    what = error.what if error is not None else ""
    fellow = [other for other, word in _heard(name, current).items() if word != "ended"]
    others, many = ", ".join(fellow), len(fellow) > 1
    hear, still = ("do not hear", "still hear") if many else ("does not hear", "still hears")
    return {
        Contact.FINE: "",
        Contact.SSH: f"{name} can't be reached by SSH ({what}), but {others} {still} its agent: only SSH has"
        " failed, the gang is intact",
        Contact.NODE: f"{name} can't be reached by SSH ({what}), and {others} {hear} its agent either: the"
        " machine is down or disconnected",
        Contact.UNKNOWN: f"{name} can't be reached: {what}",
        Contact.LINK: f"{name} answers by SSH, but {others} {hear} its agent: the link between them is broken",
        Contact.AGENT: f"{name} answers by SSH, but its agent has not written a report for a long time: it hangs or"
        " is stopped",
    }[found]


def _heard(name: str, current: Mapping[str, Report]) -> dict[str, str]:
    """Of its fellows; where none lives, of agents that no longer heard the node when their own part ended."""
    told = {other: report.links.get(name) for other, report in current.items() if other != name}
    return fellows(name, current) or {other: word for other, word in told.items() if word in ("silent", "lost")}
