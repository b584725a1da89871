"""The messages between a gang's agents over the leader link: a handshake that proves the run's key on both
sides, then where they are.

Handshake, one message each, HMAC-SHA256 with the run's key, hex:
    leader: Challenge, with a nonce N
    member: Hello, with a nonce M and the proof HMAC("member" RUN_ID NODE N M)
    leader: Welcome, with the proof HMAC("leader" RUN_ID NODE N M)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from orchestrator.protocol.message import Message, Unreadable, schema, side
from orchestrator.protocol.report import AgentState, Cause, Phase

FORMAT = 1
"""Counts up where an agent of the release before could no longer follow: unknown messages and keys are passed over."""


@schema(frozen=True, slots=True, kw_only=True)
class Challenge(Message):
    """Leader, to each client that connects. release: its version; '' where 0.1.0 does not say."""

    type: str = "challenge"
    format: int = 1
    nonce: str
    release: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """Member, to a challenge."""

    type: str = "hello"
    format: int = 1
    node: str
    run_id: str = ""
    nonce: str
    proof: str
    release: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """Leader, to a member that has proved the key."""

    type: str = "welcome"
    proof: str


def one_release(gang: str) -> str:
    """What to do where two agents of a gang can't follow each other."""
    return f"run `l40s-deploy down {gang}`, then `up` for it again, both with the newer release"


def misfit(theirs: Challenge | Hello, ours: str) -> str:
    """Why this agent (ours: its version) can't follow another one; '' if it can."""
    if theirs.format == FORMAT:
        return ""
    return f"is {side(theirs.release, ours)}: their link formats differ ({theirs.format} and {FORMAT})"


@schema(frozen=True, slots=True, kw_only=True)
class Digest(Message):
    """Member, every second and at every change: where its part is. at: its epoch seconds."""

    type: str = "digest"
    state: AgentState
    phase: Phase = field(default_factory=Phase)
    complete: bool = False
    """Every rank's process is alive."""
    disk: tuple[str, ...] = ()
    """What it has to say of its state directory: its own report may not be written."""
    at: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class Account(Message):
    """Member: what it has seen that ends its part (`saw`), or that it has ended because of it (`failed`).

    weight: how near that is to the beginning; None where an older release does not say. blames: nodes whose addresses
    its errors carry.
    """

    type: str = "saw"
    cause: Cause | None = None
    weight: int | None = None
    blames: tuple[str, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class Stop(Message):
    """Member: the controller ordered it to stop; stop all nodes."""

    type: str = "stop"
    now: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class Ended(Message):
    """Member: nothing of its part runs any more, but for these processes. cause: why it ended, where it failed."""

    type: str = "ended"
    state: AgentState
    left_behind: tuple[int, ...] = ()
    cause: Cause | None = None


@schema(frozen=True, slots=True, kw_only=True)
class AgentEnded(Message):
    """A guardian, in its agent's place: the agent is gone, and what it held with it."""

    type: str = "agent-ended"


@schema(frozen=True, slots=True, kw_only=True)
class Pulse(Message):
    """Leader, every second and at every change."""

    type: str = "pulse"
    state: AgentState


@schema(frozen=True, slots=True, kw_only=True)
class Go(Message):
    """Leader: start your engine."""

    type: str = "go"


@schema(frozen=True, slots=True, kw_only=True)
class Ask(Message):
    """Leader: say what you have seen (`saw`)."""

    type: str = "ask"


@schema(frozen=True, slots=True, kw_only=True)
class Gather(Message):
    """Leader: the engine hangs; look at your ranks while they stand. again: only where your last look saw something
    that goes on by itself."""

    type: str = "gather"
    again: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class Drain(Message):
    """Leader: its engine drains, your ranks may end now."""

    type: str = "drain"


@schema(frozen=True, slots=True, kw_only=True)
class End(Message):
    """Leader: it is over; with a verdict, because of that."""

    type: str = "end"
    verdict: Cause | None = None
    now: bool = False


GREETINGS: Mapping[str, type[Message]] = {"challenge": Challenge, "welcome": Welcome}
MEMBERS: Mapping[str, type[Message]] = {
    "digest": Digest,
    "saw": Account,
    "failed": Account,
    "stop": Stop,
    "ended": Ended,
    "agent-ended": AgentEnded,
}
LEADERS: Mapping[str, type[Message]] = {
    "pulse": Pulse,
    "go": Go,
    "ask": Ask,
    "gather": Gather,
    "drain": Drain,
    "end": End,
    "agent-ended": AgentEnded,
}


def heard(kinds: Mapping[str, type[Message]], raw: Mapping[str, Any]) -> Message | None:
    """A message of these kinds; None for one of another release that this one does not know, or can't read."""
    kind = kinds.get(str(raw.get("type")))
    message = kind.read(raw) if kind is not None else None
    return None if isinstance(message, Unreadable) else message
