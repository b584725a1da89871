"""The two sides of a gang's lifecycle, and how they find the one cause of its end. Pure, as the rest of it.

A death becomes visible late, and on all nodes at once: CUDA delays a killed process's exit by 200 to 400 ms, while its
peers end after 20 to 40 ms with errors of their own. So no single account decides. The leader's agent asks all others
what they have seen, waits for their answers up to a limit, and rules once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.node.agent import causes
from orchestrator.node.agent.causes import WeighedCause, Weight, choose
from orchestrator.node.agent.lifecycle import Effects, Lifecycle, PlainEffect, Send
from orchestrator.protocol.link import (
    LEADERS,
    MEMBERS,
    Account,
    AgentEnded,
    Ask,
    Digest,
    Drain,
    End,
    Ended,
    Gather,
    Go,
    Pulse,
    Stop,
    heard,
    one_release,
)
from orchestrator.protocol.report import AgentState, Cause

if TYPE_CHECKING:
    from orchestrator.node.agent.staged_run import Run

ANSWER_S = 0.5
"""An agent that does not answer within this is stopped or cut off; the accounts of the others decide."""
SETTLE_S = 1.0
"""A first-hand cause may still arrive: a member's parent needs half a second for its ranks' last words."""
HOLD_S = 3.0
"""A member that waits in vain for the leader's verdict names its own cause."""
LINK_S = 30.0
"""A node that has not reached the leader's agent this long after its own checks fails instead of being armed."""
LEADERS_CHECKS_S = 90.0
"""A member that has reached the leader's port waits this long: the leader's checks may still be running, and `up` waits
as long for them (ARM_S in model/deadlines.py)."""
FOLLOW_LEADER_S = 1.5
"""Once the leader's engine has gone, workers get this long for their own shutdown before SIGKILL. Every rank was told
to end before the leader's ended (sglang 0.5: ShutdownReq), or none ever is (0.4.4), so a longer wait gains nothing."""


def part_of(run: Run, epoch_s: float) -> Lifecycle:
    """The lifecycle of this node's part of the run. epoch_s: as `Lifecycle` has it."""
    return (LeadersPart if run.leads else MembersPart)(run, epoch_s)


@dataclass
class LeadersPart(Lifecycle):
    """The leader's side: gathers the accounts of all nodes and rules once.

    While a connection that broke a moment ago may come back, it does not: if that agent is gone, what was seen since
    may only have followed, and `membership` names it.
    """

    weighed_causes: dict[str, WeighedCause] = field(default_factory=dict)
    """By the node that gave them, in the order of arrival."""
    _answer_until: float = 0.0
    _waiting: frozenset[str] = frozenset()
    """Members that were asked and have not answered."""

    def _say_again(self, node: str) -> Effects:
        if self.state.unwanted:
            return [Send(End(verdict=self.verdict, now=self.verdict is None), only=node)]
        if self.state is AgentState.DRAINING:
            return [Send(Drain(), only=node)]
        return [Send(Go(), only=node)] if self.state.runs else []

    def _hear(self, node: str, message: Mapping[str, Any]) -> Effects:
        match heard(MEMBERS, message):
            case Ended() as ended:
                self.members.ended.add(node)
                return self._hear_end(node, ended)
            case AgentEnded():
                return self._follow_loss(self.members.guardian_reported(node, self.now))
            case Account(cause=cause) if self.state.unwanted:
                # it may be nearer to the first failure than what ended us
                if cause is not None and not cause.secondary and self.verdict is not None and self.verdict.secondary:
                    self.verdict = cause
            case Account() as account:
                return self._weigh(node, WeighedCause.of(account))
            case Digest() as digest:
                self.digests[node] = digest
            case Stop(now=at_once):
                return self._stop_now() if at_once else self._stop()
        return []

    def _hear_end(self, node: str, ended: Ended) -> Effects:
        """A node says why before it ends; that message is lost if the connection broke meanwhile."""
        if self.state.ends or self.until:
            return []
        if ended.cause is None and ended.state is AgentState.STOPPED:
            return self._stop_now()
        words = f"its part of the gang stopped ({ended.state.value}) without a reported cause"
        cause = ended.cause or Cause(node=node, text=words, at=self.epoch_s + self.now, fix="l40s-deploy logs")
        return self._weigh(node, WeighedCause.of(Account(cause=cause)))

    def _failed_here(self, weighed: WeighedCause) -> Effects:
        return self._weigh(self.run.node, weighed)

    def _weigh(self, node: str, weighed: WeighedCause | None) -> Effects:
        """Take a node's account; None: it has seen nothing. At the first one, ask all others, and look here."""
        self._waiting -= {node}
        if self.state.ends or weighed is None:
            return self._judge()
        before = self.weighed_causes.get(node)
        if before is None or weighed.weight > before.weight:
            self.weighed_causes[node] = weighed
        if self.until:
            return self._judge()
        self.until, self._answer_until = self.now + SETTLE_S, self.now + ANSWER_S
        self._waiting = self.members.joined - {node}
        return [Send(Ask()), PlainEffect.LOOK]

    def _judge(self) -> Effects:
        """Rule once a first-hand account is there and all others have answered, or their time is over."""
        if self.state.ends or not self.until or self.members.may_come_back():
            return []
        first_hand = any(weighed.weight is Weight.SEEN for weighed in self.weighed_causes.values())
        answered = not self._waiting & self.members.joined or self.now >= self._answer_until
        if not (first_hand and answered) and self.now < self.until:
            return []
        self.verdict = verdict = choose(self.weighed_causes)
        own = self.weighed_causes.get(self.run.node)
        ours = own is not None and own.cause == verdict
        return self._fail(verdict if ours else causes.followed(self.run.node, verdict, verdict.at))

    def _fail(self, cause: Cause) -> Effects:
        if not self.state.ends:
            self.verdict = self.verdict or cause
        return self._end(cause, End(verdict=self.verdict))

    def _arm(self) -> Effects:
        return self._enter(AgentState.ARMED)

    def _start(self) -> Effects:
        started = super()._start()
        return [*started, Send(Go())] if started else []

    def _stop(self) -> Effects:
        if self.state.ends or not self.engine_runs:
            return [] if self.state.ends else self._stop_now()
        return [*self._drain(Drain()), PlainEffect.ASK_ENGINE_TO_END]


@dataclass
class MembersPart(Lifecycle):
    """A member's side: reports what it sees, answers questions, and waits for the leader's verdict if it is unsure.

    What it sees while its connection to the leader may come back has to wait: if the leader's agent is gone, it may
    only have followed.
    """

    weighed: WeighedCause | None = None
    """This node's account of why its part ends."""
    _held: bool = False
    """The account waits for what became of a connection."""

    def _say_again(self, node: str) -> Effects:
        lost = self.cause is not None and self.state.unwanted
        return [Send(Account(type="failed", cause=self.cause), only=node)] if lost else []

    def _hear(self, node: str, message: Mapping[str, Any]) -> Effects:  # noqa: PLR0911 - one a kind
        match heard(LEADERS, message):
            case Go():
                return self._start()
            case Pulse(state=state) if self.facts.complete:
                return self._follow_leaders_state(state)
            case Ask() if not self.state.ends:
                return [PlainEffect.LOOK]
            case Gather(again=again):
                return [PlainEffect.GATHER_AGAIN if again else PlainEffect.GATHER]
            case Drain():
                return self._drain()
            case End(verdict=verdict, now=now):
                return self._end_with_leader(verdict, now=now)
            case AgentEnded():
                return self._follow_loss(self.members.guardian_reported(node, self.now))
        return []

    def _follow_leaders_state(self, state: AgentState) -> Effects:
        rising = self.state in (AgentState.STARTING, AgentState.WARMING)
        later = state is AgentState.READY or (state is AgentState.WARMING and self.state is AgentState.STARTING)
        return self._enter(state) if rising and later else []

    def _end_with_leader(self, verdict: Cause | None, *, now: bool) -> Effects:
        self.verdict = verdict or self.verdict
        if verdict is not None and not self.state.ends:
            return self._end(self._own(verdict))
        if self.state.unwanted:
            return []
        if now or verdict is not None:
            return self._enter(AgentState.STOPPING)
        self._deadline = self.now + min(self.run.watch.stop.shutdown_s, FOLLOW_LEADER_S)
        return self._enter(AgentState.DRAINING)

    def _own(self, verdict: Cause) -> Cause:
        """The cause of this node's own part: its own account if that is the one the leader names."""
        own = self.weighed
        if own is not None and own.weight > Weight.FOLLOWED and verdict.node == self.run.node:
            return own.cause
        return causes.followed(self.run.node, verdict, self.epoch_s + self.now)

    def _failed_here(self, weighed: WeighedCause) -> Effects:
        if self.weighed is not None and weighed.weight <= self.weighed.weight:
            return []
        self.weighed = weighed
        return self._tell(weighed)

    def _looked(self) -> Effects:
        return [Send(self.weighed.account() if self.weighed is not None else Account())]

    def _tell(self, weighed: WeighedCause) -> Effects:
        """Say what was seen; end because of it at once if nothing can have come before it."""
        joined, self._held = bool(self.members.joined), self.members.may_come_back()
        messages = [weighed.account()] if joined else []
        if self._held or (joined and weighed.weight is not Weight.SEEN):
            self.until = self.until or self.now + HOLD_S
            return [*map(Send, messages)]
        return [*map(Send, messages), *self._end(weighed.cause)]

    def _judge(self) -> Effects:
        if self.weighed is None or self.state.ends:
            return []
        if self._held and not self.members.may_come_back():
            return self._tell(self.weighed)
        return self._end(self.weighed.cause) if self.until and self.now >= self.until else []

    def _fail(self, cause: Cause) -> Effects:
        return self._end(cause, Account(type="failed", cause=cause))

    def _arm(self) -> Effects:
        if self.members.joined:
            return self._enter(AgentState.ARMED)
        if self.facts.misfit:
            text, fix = f"the leader's agent {self.facts.misfit}", one_release(self.run.gang)
        elif self._waited() <= (LEADERS_CHECKS_S if self.facts.reached else LINK_S):
            return []
        else:
            address = f"{self.run.leader.address}:{self.run.leader.port}"
            text = f"the leader's agent does not respond at {address} ({self.facts.trouble or 'no answer'})"
            fix = "open that TCP port between the nodes"
        return self._fail(self.because(self.now, text, fix=fix, secondary=True))  # a dead leader comes first

    def _stop(self) -> Effects:
        if self.state.ends:
            return []
        return [Send(Stop()), *self._drain()] if self.members.joined else self._stop_now()
