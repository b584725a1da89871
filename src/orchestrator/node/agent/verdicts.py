"""Decides who is named as the one cause of a gang's end. Pure: timed events in; questions, messages and effects out.

A death becomes visible late, and on all nodes at once: CUDA delays a killed process's exit by 200 to 400 ms, while its
peers end after 20 to 40 ms with errors of their own. So no single account decides. The leader's agent asks all others
what they have seen, waits for their answers up to a limit, and rules once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from orchestrator.node.agent import causes
from orchestrator.node.agent.causes import Statement, Weight
from orchestrator.protocol.report import Cause

ANSWER_S = 0.5
"""An agent that does not answer within this is stopped or cut off; the accounts of the others decide."""
SETTLE_S = 1.0
"""A first-hand cause may still arrive: a member's parent needs half a second for its ranks' last words."""
HOLD_S = 3.0
"""A member that waits in vain for the leader's verdict names its own cause."""


class PlainEvent(Enum):
    """What a part's lifecycle and its verdict are told and that carries no values."""

    CHECKS_PASSED = "the node's own checks have passed"
    ENGINE_STARTED = "the engine's parent process runs"
    ENGINE_GONE = "the engine has stopped; the reason comes as `OwnFailure`"
    SERVICE_HEALTHY = "the engine's HTTP service answers (leader)"
    CANARY_ACCEPTED = "the canary generation was accepted (leader)"
    LEADER_ASKED = "the leader asks what this node has seen (member)"
    LOOK_DONE = "`PlainEffect.LOOK` is done"
    TICK = "time has passed"


class PlainEffect(Enum):
    """What the agent is to do, without values."""

    START_ENGINE = "start the engine, and its HTTP probes on the leader"
    ASK_ENGINE_TO_END = "ask the engine to shut down gracefully: it may finish its running requests (leader)"
    LOOK = "read the log and the ranks' states now; findings come as `OwnFailure`, then `LOOK_DONE`"
    ASK_MEMBERS = "ask every member what it has seen (leader)"


@dataclass(frozen=True, slots=True)
class OwnFailure:
    """An error that ends this node's part."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class AccountReceived:
    """A member's account (leader). None: it has seen nothing."""

    node: str
    statement: Statement | None


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A member can no longer answer (leader)."""

    node: str


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """The leader's verdict (member)."""

    verdict: Cause


Event = OwnFailure | AccountReceived | MemberGone | VerdictReceived | PlainEvent


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this node's account to the leader (member)."""

    statement: Statement | None


@dataclass(frozen=True, slots=True)
class SendVerdict:
    """The gang's verdict: send it to all nodes, and end (leader). cause: that of this node's own part."""

    verdict: Cause
    cause: Cause


@dataclass(frozen=True, slots=True)
class Fail:
    """End this node's part with this cause (member)."""

    cause: Cause


Effect = Tell | SendVerdict | Fail | PlainEffect


@dataclass
class LeaderVerdict:
    """The leader's side: gathers the accounts of all nodes and rules once."""

    node: str
    statements: dict[str, Statement] = field(default_factory=dict)
    """By the node that gave them, in the order of arrival."""
    until: float = 0.0
    """Deadline of the ruling, monotonic seconds; 0 if nothing has happened."""
    _answer_until: float = 0.0
    _waiting: frozenset[str] = frozenset()
    _over: bool = False

    def step(
        self, now: float, event: Event, joined: frozenset[str] = frozenset(), *, broken: bool = False
    ) -> list[Effect]:
        """joined: the other nodes that are connected. broken: one's connection broke a moment ago: if its agent is
        gone, what was seen since may only have followed, and `membership` names it."""
        if self._over:
            return []
        effects: list[Effect] = []
        match event:
            case OwnFailure(statement):
                effects = self._take(now, self.node, statement, joined)
            case AccountReceived(node, statement):
                self._waiting -= {node}
                if statement is not None:
                    effects = self._take(now, node, statement, joined - {node})
            case MemberGone(node):
                self._waiting -= {node}
            case _:
                pass
        return effects or ([] if broken else self._rule(now, joined))

    def _take(self, now: float, node: str, statement: Statement, others: frozenset[str]) -> list[Effect]:
        before = self.statements.get(node)
        if before is None or statement.weight > before.weight:
            self.statements[node] = statement
        if self.until:
            return []
        self.until, self._answer_until = now + SETTLE_S, now + ANSWER_S
        self._waiting = others
        return [PlainEffect.ASK_MEMBERS, PlainEffect.LOOK]

    def _rule(self, now: float, joined: frozenset[str]) -> list[Effect]:
        if not self.until:
            return []
        first_hand = any(statement.weight is Weight.SEEN for statement in self.statements.values())
        answered = not self._waiting & joined or now >= self._answer_until
        if not (first_hand and answered) and now < self.until:
            return []
        self._over = True
        verdict = choose(self.statements)
        own = self.statements.get(self.node)
        ours = own is not None and own.cause == verdict
        return [SendVerdict(verdict, verdict if ours else causes.followed(self.node, verdict, verdict.at))]


@dataclass
class MemberAccount:
    """A member's side: reports what it sees, answers questions, and waits for the leader's verdict if it is unsure."""

    node: str
    statement: Statement | None = None
    until: float = 0.0
    """Deadline for the verdict, monotonic seconds; 0 if it does not wait."""
    _held: bool = False
    """The account waits for what became of a connection."""
    _over: bool = False

    def step(
        self, now: float, event: Event, joined: frozenset[str] = frozenset(), *, broken: bool = False
    ) -> list[Effect]:
        """joined: the leader, while it is connected. broken: its connection broke a moment ago: if its agent is gone,
        what is seen here from now on may only have followed."""
        effects: list[Effect] = []
        match event:
            case _ if self._over:
                pass
            case OwnFailure(statement):
                effects = self._take(now, statement, bool(joined), broken=broken)
            case PlainEvent.LEADER_ASKED:
                effects = [PlainEffect.LOOK]
            case PlainEvent.LOOK_DONE:
                effects = [Tell(self.statement)]
            case VerdictReceived(verdict):
                effects = self._end(self._own(verdict, now))
            case _ if self._held and not broken and self.statement is not None:
                effects = self._say(now, self.statement, bool(joined), broken=False)
            case _ if self.statement is not None and self.until and now >= self.until:
                effects = self._end(self.statement.cause)
            case _:
                pass
        return effects

    def _take(self, now: float, statement: Statement, joined: bool, *, broken: bool) -> list[Effect]:
        if self.statement is not None and statement.weight <= self.statement.weight:
            return []
        self.statement = statement
        return self._say(now, statement, joined, broken=broken)

    def _say(self, now: float, statement: Statement, joined: bool, *, broken: bool) -> list[Effect]:
        self._held = broken
        if broken or (joined and statement.weight is not Weight.SEEN):
            self.until = self.until or now + HOLD_S
            return [Tell(statement)] if joined else []
        tell: list[Effect] = [Tell(statement)] if joined else []
        return tell + self._end(statement.cause)

    def _own(self, verdict: Cause, now: float) -> Cause:
        """The cause of this node's own part: its own account if that is the one the leader names."""
        own = self.statement
        if own is not None and own.weight > Weight.FOLLOWED and verdict.node == self.node:
            return own.cause
        return causes.followed(self.node, verdict, now)

    def _end(self, cause: Cause) -> list[Effect]:
        self._over = True
        return [Fail(cause)]


def choose(statements: Mapping[str, Statement]) -> Cause:
    """The one cause: the account nearest to the first failure. Among equals, one whose errors blame no other node, then
    one whose node is blamed by most, then the first. If all only followed, the node that most of them blame is
    named."""
    told = list(statements.values())
    best = max(statement.weight for statement in told)
    votes = Counter(blamed for statement in told for blamed in set(statement.blames))
    if best is Weight.FOLLOWED:
        return _blamed(told, votes)
    nearest = [statement for statement in told if statement.weight is best]
    return max(nearest, key=lambda one: (not set(one.blames) - {one.node}, votes[one.node])).cause


def _blamed(told: Sequence[Statement], votes: Counter[str]) -> Cause:
    if not votes:
        return told[0].cause
    name = max(votes, key=lambda node: votes[node])
    by = next(statement for statement in told if name in statement.blames)
    if name == by.node:
        return by.cause
    text = f"{by.node} lost its connection to {name}: {by.cause.text}"
    return replace(by.cause, node=name, tp_rank=None, signal=None, exit_code=None, text=text)
