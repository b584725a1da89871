"""The lifecycle of one node's part of a gang, from *staged* to its end. Pure: events in, effects out.

The agent (agent.py) passes in what it has seen, with the time and the facts of that moment, and carries out the
effects in order. `membership` decides which agents can be heard; `sides` has what only the leader's part does and what
only a member's does, who is named as the cause among it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from orchestrator.node.agent.causes import WeighedCause
from orchestrator.node.agent.membership import LinkClosed, LinkOpened, Membership, MessageReceived
from orchestrator.protocol.advice import exact
from orchestrator.protocol.link import Digest, End, Stop
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.run_files import GoalOrder

if TYPE_CHECKING:
    from orchestrator.node.agent.staged_run import Run


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true at an event.

    complete: every rank's process is alive
    living:   some process of the engine still runs (only checked while it drains)
    reached, refused, trouble, misfit: a member's side of the link: the connection was accepted; nothing listens there;
        why the newest attempt failed; why this member can't work with the leader's agent at all
    """

    complete: bool = False
    living: bool = True
    reached: bool = False
    refused: bool = False
    trouble: str = ""
    misfit: str = ""


class PlainEvent(Enum):
    """What a part is told and that carries no values."""

    CHECKS_PASSED = "the node's own checks have passed"
    ENGINE_STARTED = "the engine's parent process runs"
    ENGINE_GONE = "the engine has stopped; the reason comes as a `WeighedCause`"
    SERVICE_HEALTHY = "the engine's HTTP service answers (leader)"
    CANARY_ACCEPTED = "the canary generation was accepted (leader)"
    LOOK_DONE = "`PlainEffect.LOOK` is done"
    TICK = "time has passed"


Event = GoalOrder | Cause | WeighedCause | LinkOpened | MessageReceived | LinkClosed | PlainEvent
"""GoalOrder: the controller's, which is read repeatedly. Cause: an error that ends this part, whatever the others
report. WeighedCause: one that another node may have caused."""


class PlainEffect(Enum):
    """What the agent is to do, without values."""

    START_ENGINE = "start the engine, and its HTTP probes on the leader"
    ASK_ENGINE_TO_END = "ask the engine to shut down gracefully: it may finish its running requests (leader)"
    LOOK = "read the log and the ranks' states now; findings come as `WeighedCause`, then `LOOK_DONE`"
    GATHER = "look at the ranks of a hung engine"
    GATHER_AGAIN = "look at them again, if the last look saw something that goes on by itself"


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


Effect = AgentState | Send | Note | PlainEffect
"""AgentState: this part has a new state; tell the other agents at once."""
Effects = list[Effect]
NO_FACTS = Facts()


@dataclass
class Lifecycle(ABC):
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
    until: float = 0.0
    """By when the gang's verdict is due, monotonic seconds; 0 if nothing has happened."""
    now: float = 0.0
    facts: Facts = NO_FACTS
    """Time and facts of the event that is handled."""
    _checked_at: float | None = None
    """When the node's own checks ended, monotonic seconds."""
    _deadline: float = 0.0
    """Deadline of the drain, monotonic seconds."""

    def __post_init__(self) -> None:
        run = self.run
        partners = run.members[1:] if run.leads else (run.leader_name,)
        self.members = Membership(run.node, partners, run.leads, run.lease_s, self.epoch_s)

    def stopped(self) -> bool:
        """Nothing runs any more: the state becomes stopped, or stays failed."""
        if self.state is AgentState.STOPPING:
            self.state = AgentState.STOPPED
        return self.state is AgentState.STOPPED

    def because(self, now: float, text: str, **more: Any) -> Cause:
        """A cause on this node, with the current time."""
        return Cause(node=self.run.node, text=text, at=self.epoch_s + now, **more)

    def step(self, now: float, event: Event, facts: Facts = NO_FACTS) -> Effects:  # noqa: PLR0911 - one a kind
        """The effects of an event, in order."""
        self.now, self.facts = now, facts
        if isinstance(event, PlainEvent):
            return self._take(event)
        match event:
            case GoalOrder():
                return self._obey(event)
            case Cause():
                return self._fail(replace(event, fix=exact(event.fix, gang=self.run.gang, model=self.run.model)))
            case WeighedCause():
                return [] if self.state.ends else self._failed_here(event)
        self.members.hear(now, event)
        match event:
            case LinkOpened(node):
                return [Note("joined", {"node": node}), *self._say_again(node), *self._judge()]
            case LinkClosed(node, reason):
                return [Note("left", {"node": node, "reason": reason}), *self._judge()]
            case MessageReceived(node, message):
                return self._hear(node, message)

    def _take(self, event: PlainEvent) -> Effects:
        match event:
            case PlainEvent.ENGINE_STARTED | PlainEvent.ENGINE_GONE:
                self.engine_runs = event is PlainEvent.ENGINE_STARTED
            case PlainEvent.SERVICE_HEALTHY:
                return self._enter(AgentState.WARMING) if self.state is AgentState.STARTING else []
            case PlainEvent.LOOK_DONE:
                return [] if self.state.ends else self._looked()
            case PlainEvent.TICK:
                gone = self._follow_loss(*self.members.lost(self.now, refused=self.facts.refused))
                return [*gone, *self._judge(), *self._advance()]
            case PlainEvent.CHECKS_PASSED:
                self._checked_at = self.now
                return self._advance()
            case PlainEvent.CANARY_ACCEPTED:
                self.accepted = True
                return self._advance()
        return []

    # what the two sides do differently

    @abstractmethod
    def _say_again(self, node: str) -> Effects:
        """Repeat messages to a node that connects for the first time or again: it may have missed them."""

    @abstractmethod
    def _hear(self, node: str, message: Mapping[str, Any]) -> Effects:
        """A message of the other side."""

    @abstractmethod
    def _failed_here(self, weighed: WeighedCause) -> Effects:
        """This node has seen what may end its part, unless another node is named."""

    @abstractmethod
    def _judge(self) -> Effects:
        """Name a cause if it is time."""

    @abstractmethod
    def _fail(self, cause: Cause) -> Effects:
        """Record this node's first cause and tell the gang; a later cause is only an event."""

    @abstractmethod
    def _arm(self) -> Effects:
        """The node's own checks have passed."""

    def _looked(self) -> Effects:
        """The node's log and ranks were looked at, since a verdict is due."""
        return self._judge()

    def _start(self) -> Effects:
        return [PlainEffect.START_ENGINE, *self._enter(AgentState.STARTING)] if self.state is AgentState.ARMED else []

    @abstractmethod
    def _stop(self) -> Effects:
        """Stop gracefully: the leader's engine drains first, then all others follow."""

    # for both

    def _end(self, cause: Cause, *messages: Message) -> Effects:
        note = Note("cause", cause.as_json())
        if self.state.ends:
            return [note]
        self.cause = cause
        return [note, *map(Send, messages), *self._enter(AgentState.FAILED)]

    def _follow_loss(self, *causes: Cause) -> Effects:
        """Agents can't be heard any more. An incomplete gang that drains answers no requests: there is nothing to wait
        for."""
        effects: Effects = []
        for cause in causes:
            if self.state is AgentState.DRAINING:
                effects += self._stop_now()
            elif not self.state.ends:
                effects += self._fail(cause)
        return effects

    def _obey(self, order: GoalOrder) -> Effects:
        if order.goal == "run":
            return self._start()
        if order.goal == "stop":
            return self._stop()
        if order.goal != "stop-now":
            return []
        if order.because is not None and not self.state.ends:
            return self._fail(replace(order.because, at=self.epoch_s + self.now))
        return self._stop_now()

    def _drain(self, *messages: Message) -> Effects:
        if self.state.ends:
            return []
        self._deadline = self.now + self.run.watch.stop.drain_s + self.run.watch.stop.shutdown_s
        return [*self._enter(AgentState.DRAINING), *map(Send, messages)]

    def _stop_now(self) -> Effects:
        everybody = End(now=True) if self.run.leads else Stop(now=True)
        return [] if self.state.unwanted else [Send(everybody), *self._enter(AgentState.STOPPING)]

    def _is_drained(self) -> bool:
        return (self.run.leads and not self.engine_runs) or not self.facts.living

    def _advance(self) -> Effects:
        """What follows from the time, and from the states of all nodes."""
        if self.state is AgentState.STAGED and self._checked_at is not None:
            return self._arm()
        if self.state is AgentState.ARMED and self._waited() > self.run.armed_for_s:
            return [Note("armed for too long"), *self._stop_now()]
        if self.state is AgentState.WARMING and self._everybody_complete():
            return self._enter(AgentState.READY)
        if self.state is AgentState.DRAINING and (self._is_drained() or self.now > self._deadline > 0):
            messages: Effects = [Send(End())] if self.run.leads else []
            return [*messages, *self._enter(AgentState.STOPPING)]
        return []

    def _waited(self) -> float:
        """Seconds since the node's own checks ended."""
        return self.now - self._checked_at if self._checked_at is not None else 0.0

    def _everybody_complete(self) -> bool:
        others = [self.digests.get(name) for name in self.run.members if name != self.run.node]
        return self.accepted and self.facts.complete and all(facts is not None and facts.complete for facts in others)

    def _enter(self, state: AgentState) -> Effects:
        if state is self.state:
            return []
        self.state = state
        return [state]
