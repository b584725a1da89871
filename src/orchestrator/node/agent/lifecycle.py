"""The lifecycle of one node's part of a gang, from *staged* to its end. Pure: events in, effects out.

The agent (agent.py) passes in what it has seen, with the time and the facts of that moment, and carries out the
effects in order. `membership` decides which agents can be heard, `verdicts` who is named as the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.node.agent import causes, verdicts
from orchestrator.node.agent.causes import Statement
from orchestrator.node.agent.membership import LinkClosed, LinkOpened, Membership, MessageReceived
from orchestrator.node.agent.verdicts import LeaderVerdict, MemberAccount, PlainEffect, PlainEvent
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
    Go,
    Pulse,
    Stop,
    heard,
    one_release,
)
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.run_files import GoalOrder

if TYPE_CHECKING:
    from orchestrator.node.agent.staged_run import Run

LINK_S = 30.0
"""A node that has not reached the leader's agent this long after its own checks fails instead of being armed."""
LEADERS_CHECKS_S = 90.0
"""A member that has reached the leader's port waits this long: the leader's checks may still be running, and `up` waits
as long for them (ARM_S in model/deadlines.py)."""
FOLLOW_LEADER_S = 1.5
"""Once the leader's engine has gone, workers get this long for their own shutdown before SIGKILL. Every rank was told
to end before the leader's ended (sglang 0.5: ShutdownReq), or none ever is (0.4.4), so a longer wait gains nothing."""


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """A member's side of the link. reached: the connection was accepted; refused: nothing listens there; trouble: why
    the newest attempt failed; misfit: why this member can't work with the leader's agent at all."""

    reached: bool = False
    refused: bool = False
    trouble: str = ""
    misfit: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true at an event. complete: every rank's process is alive; living: some process of the engine still runs
    (only checked while it drains); link: a member's side of the link."""

    complete: bool = False
    living: bool = True
    link: LinkFacts = LinkFacts()


@dataclass(frozen=True, slots=True)
class GoalChanged:
    """The controller's order: run, stop or stop-now. It is read repeatedly."""

    order: GoalOrder


@dataclass(frozen=True, slots=True)
class PartFailed:
    """An error that ends this part, whatever the others report."""

    cause: Cause


Event = GoalChanged | PartFailed | LinkOpened | MessageReceived | LinkClosed | verdicts.OwnFailure | PlainEvent


@dataclass(frozen=True, slots=True)
class Enter:
    """This part has a new state: tell the other agents at once."""

    state: AgentState


@dataclass(frozen=True, slots=True)
class Send:
    """Send over the link: to the leader's agent (member), to all members or to one (leader)."""

    message: Message
    only: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the run's events."""

    what: str
    details: Mapping[str, Any] = field(default_factory=dict)


Effect = Enter | Send | Note | PlainEffect
NO_FACTS = Facts()


@dataclass
class Lifecycle:
    """`state` only moves forward: staged, armed, starting, warming, ready, draining, stopping, stopped; or failed."""

    run: Run
    epoch_s: float
    """Epoch seconds at zero of the monotonic clock, for the times in causes."""
    state: AgentState = AgentState.STAGED
    cause: Cause | None = None
    """Why this node's part ended."""
    verdict: Cause | None = None
    """The gang's first cause, in the order in which causes reached the leader's agent."""
    engine_runs: bool = False
    accepted: bool = False
    """The canary generation was accepted (leader)."""
    digests: dict[str, Digest] = field(default_factory=dict)
    """Each member's last message (leader)."""
    members: Membership = field(init=False)
    attribution: LeaderVerdict | MemberAccount = field(init=False)
    """Decides who is named as the cause."""
    _checked_at: float | None = None
    """When the node's own checks ended, monotonic seconds."""
    _deadline: float = 0.0
    """Deadline of the drain, monotonic seconds."""

    def __post_init__(self) -> None:
        run = self.run
        self.members = Membership(
            run.node, run.members[1:] if run.leads else (run.leader_name,), run.leads, run.lease_s, self.epoch_s
        )
        self.attribution = LeaderVerdict(run.node) if run.leads else MemberAccount(run.node)

    def stopped(self) -> bool:
        """Nothing runs any more: the state becomes stopped, or stays failed."""
        if self.state is AgentState.STOPPING:
            self.state = AgentState.STOPPED
        return self.state is AgentState.STOPPED

    def because(self, now: float, text: str, **more: Any) -> Cause:
        """A cause on this node, with the current time."""
        return Cause(node=self.run.node, text=text, at=self.epoch_s + now, **more)

    def step(self, now: float, event: Event, facts: Facts = NO_FACTS) -> list[Effect]:  # noqa: PLR0911 - one a kind
        """The effects of an event, in order."""
        match event:
            case LinkOpened() | MessageReceived() | LinkClosed():
                return self._hear(now, event, facts)
            case verdicts.OwnFailure() | PlainEvent.LOOK_DONE:
                return self._judge(now, event)
            case PlainEvent.CHECKS_PASSED:
                self._checked_at = now
                return self._advance(now, facts)
            case GoalChanged(order):
                return self._obey(now, order)
            case PlainEvent.ENGINE_STARTED:
                self.engine_runs = True
            case PlainEvent.ENGINE_GONE:
                self.engine_runs = False
            case PlainEvent.SERVICE_HEALTHY if self.state is AgentState.STARTING:
                return self._enter(AgentState.WARMING)
            case PlainEvent.CANARY_ACCEPTED:
                self.accepted = True
                return self._advance(now, facts)
            case PartFailed(cause):
                return self._fail(cause)
            case PlainEvent.TICK:
                return [*self._tick(now, facts)]
            case _:
                pass
        return []

    # events of the link

    def _hear(self, now: float, event: LinkOpened | MessageReceived | LinkClosed, facts: Facts) -> list[Effect]:
        self.members.hear(now, event)
        match event:
            case LinkOpened(node):
                again = self._say_again(node)
                return [Note("joined", {"node": node}), *again, *self._judge(now, PlainEvent.TICK)]
            case LinkClosed(node, reason):
                return [Note("left", {"node": node, "reason": reason}), *self._judge(now, verdicts.MemberGone(node))]
            case MessageReceived(node, message) if self.run.leads:
                return self._hear_member(now, node, heard(MEMBERS, message))
            case MessageReceived(_, message):
                return self._hear_leader(now, heard(LEADERS, message), facts)

    def _say_again(self, node: str) -> list[Effect]:
        """Repeat messages to a node that connects for the first time or again: it may have missed them."""
        if not self.run.leads:
            lost = self.cause is not None and self.state.unwanted
            return [Send(Account(type="failed", cause=self.cause))] if lost else []
        if self.state.unwanted:
            return [Send(End(verdict=self.verdict, now=self.verdict is None), only=node)]
        if self.state is AgentState.DRAINING:
            return [Send(Drain(), only=node)]
        return [Send(Go(), only=node)] if self.state.runs else []

    def _hear_member(self, now: float, node: str, message: Message | None) -> list[Effect]:
        match message:
            case Ended() as ended:
                self.members.ended.add(node)
                return self._hear_end(now, node, ended)
            case AgentEnded():
                return self._follow_loss([self.members.guardian_reported(node, now)])
            case Account() as account if self.state.unwanted:
                self._hear_late(account)
            case Account() as account:
                return self._judge(now, verdicts.AccountReceived(node, Statement.of(account)))
            case Digest() as digest:
                self.digests[node] = digest
            case Stop(now=at_once):
                return self._stop_now() if at_once else self._stop(now)
            case _:
                pass
        return []

    def _hear_end(self, now: float, node: str, ended: Ended) -> list[Effect]:
        """A node says why before it ends; that message is lost if the connection broke meanwhile."""
        if self.state.ends or self.attribution.until:
            return []
        if ended.cause is None and ended.state is AgentState.STOPPED:
            return self._stop_now()
        words = f"its part of the gang stopped ({ended.state.value}) without a reported cause"
        cause = ended.cause or Cause(node=node, text=words, at=self.epoch_s + now, fix="l40s-deploy logs")
        return self._judge(now, verdicts.AccountReceived(node, Statement.of(Account(cause=cause))))

    def _hear_late(self, account: Account) -> None:
        """An account that arrives while we end may still be nearer to the cause than the one that ended us."""
        better = account.cause is not None and not account.cause.secondary
        if better and self.verdict is not None and self.verdict.secondary:
            self.verdict = account.cause

    def _hear_leader(self, now: float, message: Message | None, facts: Facts) -> list[Effect]:  # noqa: PLR0911
        match message:
            case Go():
                return self._start()
            case Pulse(state=state):
                return self._follow_leaders_state(state, facts)
            case Ask():
                return self._judge(now, PlainEvent.LEADER_ASKED)
            case Drain():
                return self._drain(now)
            case End() as end_of_all:
                return self._end_with_leader(now, end_of_all)
            case AgentEnded():
                return self._follow_loss([self.members.guardian_reported(self.run.leader_name, now)])
            case _:
                return []

    def _follow_leaders_state(self, state: AgentState, facts: Facts) -> list[Effect]:
        rising = self.state in (AgentState.STARTING, AgentState.WARMING)
        if rising and state is AgentState.READY and facts.complete:
            return self._enter(AgentState.READY)
        if self.state is AgentState.STARTING and state is AgentState.WARMING and facts.complete:
            return self._enter(AgentState.WARMING)
        return []

    def _end_with_leader(self, now: float, message: End) -> list[Effect]:
        if message.verdict is not None:
            self.verdict = message.verdict
            if self.state is not AgentState.DRAINING:
                return self._judge(now, verdicts.VerdictReceived(message.verdict))
        if self.state.unwanted:
            return []
        if message.now or message.verdict is not None:
            return self._enter(AgentState.STOPPING)
        self._deadline = now + min(self.run.watch.stop.shutdown_s, FOLLOW_LEADER_S)
        return self._enter(AgentState.DRAINING)

    def _follow_loss(self, found: list[Cause]) -> list[Effect]:
        """Agents can't be heard any more."""
        effects: list[Effect] = []
        for cause in found:
            if self.state is AgentState.DRAINING:
                effects += self._stop_now()  # an incomplete gang answers no requests: there is nothing to wait for
            elif not self.state.ends:
                effects += self._fail(cause)
        return effects

    # who failed first

    def _judge(self, now: float, event: verdicts.Event) -> list[Effect]:
        """An event that may show who failed first: ask, look, report, rule."""
        if self.state.ends:
            return []
        effects: list[Effect] = []
        broken = self.members.may_come_back()
        for effect in self.attribution.step(now, event, self.members.joined, broken=broken):
            match effect:
                case PlainEffect.ASK_MEMBERS:
                    effects.append(Send(Ask()))
                case PlainEffect.LOOK:
                    effects.append(effect)
                case verdicts.Tell(statement):
                    effects.append(Send(statement.account() if statement is not None else Account()))
                case verdicts.Fail(cause):
                    effects += self._fail(cause, tell=False)
                case verdicts.SendVerdict(verdict, cause):
                    self.verdict = verdict
                    effects += self._fail(cause)
        return effects

    def _fail(self, cause: Cause, *, tell: bool = True) -> list[Effect]:
        """Record this node's first cause and tell the gang; a later cause is only an event. tell: the member's leader
        does not know of it yet."""
        note = Note("cause", cause.as_json())
        if self.state.ends:
            return [note]
        self.cause = cause
        messages: list[Effect] = []
        if self.run.leads:
            self.verdict = self.verdict or cause
            messages = [Send(End(verdict=self.verdict))]
        elif tell:
            messages = [Send(Account(type="failed", cause=cause))]
        return [note, *messages, *self._enter(AgentState.FAILED)]

    # orders

    def _obey(self, now: float, order: GoalOrder) -> list[Effect]:
        if order.goal == "run":
            return self._start()
        if order.goal == "stop":
            return self._stop(now)
        if order.goal != "stop-now":
            return []
        if order.because is not None and not self.state.ends:
            return self._fail(causes.from_controller(order.because, self.epoch_s + now))
        return self._stop_now()

    def _start(self) -> list[Effect]:
        if self.state is not AgentState.ARMED:
            return []
        messages: list[Effect] = [Send(Go())] if self.run.leads else []
        return [PlainEffect.START_ENGINE, *self._enter(AgentState.STARTING), *messages]

    def _stop(self, now: float) -> list[Effect]:
        """Stop gracefully: the leader's engine drains first, then all others follow."""
        if self.state.ends:
            return []
        if not self.run.leads and self.members.joined:
            return [Send(Stop()), *self._drain(now)]
        if self.run.leads and self.engine_runs:
            return [*self._drain(now), Send(Drain()), PlainEffect.ASK_ENGINE_TO_END]
        return self._stop_now()

    def _drain(self, now: float) -> list[Effect]:
        if self.state.ends:
            return []
        self._deadline = now + self.run.watch.stop.drain_s + self.run.watch.stop.shutdown_s
        return self._enter(AgentState.DRAINING)

    def _stop_now(self) -> list[Effect]:
        if self.state.unwanted:
            return []
        everybody = End(now=True) if self.run.leads else Stop(now=True)
        return [Send(everybody), *self._enter(AgentState.STOPPING)]

    # what follows from the states of all nodes

    def _tick(self, now: float, facts: Facts) -> list[Effect]:
        gone = self._follow_loss(self.members.lost(now, refused=facts.link.refused))
        return [*gone, *self._judge(now, PlainEvent.TICK), *self._advance(now, facts)]

    def _advance(self, now: float, facts: Facts) -> list[Effect]:
        waited = now - self._checked_at if self._checked_at is not None else 0.0
        if self.state is AgentState.STAGED and self._checked_at is not None:
            return self._arm_when_joined(now, waited, facts.link)
        if self.state is AgentState.ARMED and waited > self.run.armed_for_s:
            return [Note("armed for too long"), *self._stop_now()]
        if self.state is AgentState.WARMING and self.run.leads and self._everybody_complete(facts):
            return self._enter(AgentState.READY)
        if self.state is AgentState.DRAINING:
            return self._leave_when_drained(now, facts)
        return []

    def _arm_when_joined(self, now: float, waited: float, link: LinkFacts) -> list[Effect]:
        if self.run.leads or self.members.joined:
            return self._enter(AgentState.ARMED)
        if link.misfit:
            fix = one_release(self.run.gang)
            return self._fail(self.because(now, f"the leader's agent {link.misfit}", fix=fix, secondary=True))
        if waited <= (LEADERS_CHECKS_S if link.reached else LINK_S):
            return []
        address = f"{self.run.leader.address}:{self.run.leader.port}"
        text = f"the leader's agent does not respond at {address} ({link.trouble or 'no answer'})"
        fix = "open that TCP port between the nodes"
        return self._fail(self.because(now, text, fix=fix, secondary=True))  # a dead leader comes first

    def _everybody_complete(self, facts: Facts) -> bool:
        others = [name for name in self.run.members if name != self.run.node]
        complete = all(name in self.digests and self.digests[name].complete for name in others)
        return self.accepted and facts.complete and complete

    def _leave_when_drained(self, now: float, facts: Facts) -> list[Effect]:
        leaders_engine_gone = self.run.leads and not self.engine_runs
        if not (leaders_engine_gone or now > self._deadline > 0 or not facts.living):
            return []
        messages: list[Effect] = [Send(End())] if self.run.leads else []
        return [*messages, *self._enter(AgentState.STOPPING)]

    def _enter(self, state: AgentState) -> list[Effect]:
        if state is self.state:
            return []
        self.state = state
        return [Enter(state)]
