"""How gangs are started: from any state to gangs that serve, or to one cause with nothing left behind.

`gang.actions` decides on the order of the steps; this module carries them out, looks again, and keeps the time.
If it is killed at any moment, the next `up` continues from what the nodes report.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from orchestrator.gang.actions import CONNECT_S, Action, Goal, StepKind, next_step, on_its_way
from orchestrator.gang.paths import Contact
from orchestrator.gang.steps.locks import fence, still_ours
from orchestrator.gang.steps.staging import Staged, other_checkpoint
from orchestrator.gang.steps.status.reports import because, request_keys, see
from orchestrator.gang.view import GangView
from orchestrator.model.deadlines import ARM_S, GO_S, KILL_S, MARGIN_S, STAGE_S
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import PerNode, together
from orchestrator.model.plan import Plan
from orchestrator.protocol.errors import DeployError, Detached, GangFailed, InputError, Undone, Unreachable
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import ANSWERS, ArmRequest, GangRequest, StateAnswer, StopRequest
from orchestrator.records.documents import RunRecord
from orchestrator.records.plans import RecordedPlan, keep_plan
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


class Watcher(Protocol):
    """Shows the progress to the operator; steps print nothing."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; nothing is changed yet."""

    def step(self, gang: str, words: str) -> None:
        """A step begins."""

    def seen(self, views: Sequence[GangView]) -> None:
        """The gangs were examined again."""


_Request = GangRequest | StagingRequest
POLL_S = 0.05
"""Nodes answer as soon as something has changed, or after a second."""
LOST_POLL_S = 1.0
"""While a node can't be reached: its failure is known at once, without that second."""
USUAL = StragglerWait()
GLANCE = StragglerWait(least_s=0.5, login_s=0.0)
"""With a node that did not answer the look before: it is connected to meanwhile."""


BeforeGo = Callable[[GangSpec, Mapping[str, StagingRequest]], None]
"""Called when all nodes of a gang are armed with these requests, before the first rank starts; raises DeployError if
none may start."""


def raise_all(
    fleet: Fleet,
    starts: Sequence[Staged],
    watcher: Watcher,
    *,
    timeout_s: float,
    undo_on_interrupt: bool = False,
    before_go: BeforeGo | None = None,
) -> tuple[GangView, ...]:
    """Start gangs, wherever their plans come from; as they were seen last. Raises as `up` does, with nothing left of a
    failed gang.

    An interruption leaves gangs whose ranks were told to start unchanged, and raises Undone if there were others.
    """
    rises = [_Rise(fleet, start, watcher, before_go) for start in starts]
    try:
        return _follow(fleet, rises, timeout_s, watcher)
    except KeyboardInterrupt as interrupted:
        waiting = [rise for rise in rises if rise.waits]
        for rise in rises if undo_on_interrupt else waiting:
            rise.undo()
        if not waiting or isinstance(interrupted, Detached):
            raise
        raise _undone(waiting, rises) from interrupted
    except BaseException:
        for rise in rises:
            rise.undo(unless_ended=True)
        raise


def _given_up(rises: Iterable[tuple[_Rise, GangView]], waited_s: float) -> list[DeployError]:
    return [rise.give_up(view, waited_s) for rise, view in rises if rise.open]


def _patience_after(views: Sequence[GangView]) -> StragglerWait:
    return GLANCE if any(view.unreachable for view in views) else USUAL


def _undone(waiting: Sequence[_Rise], rises: Sequence[_Rise]) -> Undone:
    goes_on = any(rise.open for rise in rises if rise not in waiting)
    return Undone(tuple(rise.gang.name for rise in waiting), goes_on=goes_on)


def _follow(fleet: Fleet, rises: Sequence[_Rise], timeout_s: float, watcher: Watcher) -> tuple[GangView, ...]:
    begin, patience = time.monotonic(), USUAL
    failures: list[DeployError] = []
    seen: dict[str, str] = {}
    while True:
        looked = time.monotonic()
        views = see(fleet, [rise.gang for rise in rises], seen=seen, patience=patience)
        patience = _patience_after(views)
        watcher.seen(views)
        with_views = list(zip(rises, views, strict=True))
        acted = [rise.step(view, looked, failures) for rise, view in with_views if rise.open]
        waited = time.monotonic() - begin
        if waited > timeout_s:
            failures += _given_up(with_views, waited)
        if not any(rise.open for rise in rises):
            break
        if not any(acted):
            time.sleep(LOST_POLL_S if patience is GLANCE else POLL_S)
    if failures:
        raise failures[0]
    return views


@dataclass
class _Rise:
    """One gang that is being started.

    joined, followed: another command starts it with the same plan; did so, and this one waited for that
    broke: what made the start fail on this side, of which no agent can know
    staged: what this command has staged, by node; gone: its ranks were told to start
    well_at: when a look last began at which every node answered and the gang was not degraded
    lost: nodes that have not answered for as long as a connection may take, or that no agent hears either
    leave: what runs there is left as it is, whatever ends this command
    """

    fleet: Fleet
    start: Staged
    watcher: Watcher
    before_go: BeforeGo | None = None
    goal: Goal = field(init=False)
    record: RunRecord | None = None
    done: bool = False
    failed: bool = False
    joined: bool = False
    followed: bool = False
    broke: Cause | None = None
    staged: Mapping[str, StagingRequest] = field(default_factory=dict)
    gone: bool = False
    well_at: float = field(init=False)
    lost: frozenset[str] = frozenset()
    leave: bool = False

    def __post_init__(self) -> None:
        self.well_at = time.monotonic()
        self.goal = Goal(plan_id=self.start.plan_id, lease_s=self.gang.leader.lease_s)

    @property
    def gang(self) -> GangSpec:
        """The gang."""
        return self.start.gang

    @property
    def open(self) -> bool:
        """Neither ready nor failed yet."""
        return not (self.done or self.failed)

    @property
    def waits(self) -> bool:
        """This command has staged it, and none of its ranks was told to start: it does not continue by itself."""
        return self.open and bool(self.goal.run_id) and not self.gone

    def step(self, view: GangView, looked: float, failures: list[DeployError]) -> bool:
        """Do what the view calls for, seen by a look that began then; False where there is nothing to do but wait."""
        if not view.unreachable and view.state is not GangState.DEGRADED:
            self.well_at = looked
        troubled_s = time.monotonic() - self.well_at
        self.lost = frozenset(
            node.name for node in view.unreachable if troubled_s >= CONNECT_S or node.contact is Contact.NODE
        )
        try:
            return self._act(next_step(self.goal, view, troubled_s), view)
        except DeployError as failure:
            self._event("failed", where=failure.where, text=failure.what)
            self.failed = True
            self.undo()
            failures.append(failure)
            return True

    def give_up(self, view: GangView, waited: float) -> DeployError:
        """The timeout has passed: stop it, and report which nodes were late."""
        self.failed = True
        left = "" if self.goal.run_id or self.joined else "; this command did not start it and left it unchanged"
        who = view.progress or ", ".join(f"{node.name} {node.state} {node.phase.name}".strip() for node in view.nodes)
        late = f"not ready within {waited:.0f} s: {who}"
        fix = "check `l40s-deploy logs`, or raise --timeout"
        behind = next((node.name for node in view.nodes if node.state is not NodeState.READY), self.gang.leader.name)
        self.broke = Cause(node=behind, text=late, fix=fix)
        self.undo()
        return GangFailed(f"{late}{left}", where=f"gang {self.gang.name}", fix=fix)

    def undo(self, *, unless_ended: bool = False) -> None:
        """Leave nothing of this run behind on any node that can be reached, as long as this command holds the gang."""
        if not self.leave and (self.goal.run_id or self.joined) and not (unless_ended and (self.done or self.failed)):
            with contextlib.suppress(DeployError):
                nodes = [node.name for node in self.gang.nodes if node.name not in self.lost]
                self._stop_now(nodes, run_id=self.goal.run_id or None)

    def _act(self, action: Action, view: GangView) -> bool:
        self.joined = not self.goal.run_id and on_its_way(self.goal, view)
        self.followed = self.followed or self.joined
        if action.do is StepKind.WAIT:
            return False
        self._event(action.do.value, nodes=action.nodes, why=action.why)
        match action.do:
            case StepKind.STAGE:
                self._stage()
            case StepKind.ARM:
                self._arm(action.nodes)
            case StepKind.GO:
                self._go(action.nodes)
            case StepKind.STOP_NOW:
                self._stop_now(action.nodes)
            case StepKind.DONE:
                self.done = True
            case StepKind.FAIL | StepKind.GIVE_UP | StepKind.LOST | StepKind.REFUSE:
                raise self._failure(action, view)
        return True

    def _failure(self, action: Action, view: GangView) -> DeployError:
        if action.do is StepKind.FAIL:
            return failure_of(view, action.why)
        if action.do is StepKind.GIVE_UP:
            self.broke = view.late or self.broke
            return failure_of(replace(view, cause=view.late), action.why)
        if action.do is StepKind.LOST:
            return self._lost(view)
        return InputError(
            f"this gang runs another plan: {action.why}; the requested plan is {self.goal.plan_id}",
            where=f"gang {self.gang.name}",
            fix="run the same command again; it starts from what is running now",
        )

    def _stage(self) -> None:
        still_ours(self.fleet, [self.gang])
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.record = RunRecord.open(f"{run_id}-{self.gang.name}", self.start.recorded())
        if self.start.document:  # else it was read from the nodes, whose word is no record of ours
            kept = RecordedPlan(
                service_url=self.start.service_url, asked=self.start.asked.as_json() if self.start.asked else None
            )
            keep_plan(self.gang.name, self.start.plan_id, kept)
        for words in self.start.remarks:
            self.watcher.step(self.gang.name, words)
        self.watcher.step(self.gang.name, "staging")
        requests = self.start.of_run(run_id, secrets.token_hex(32))
        self.goal, self.staged = replace(self.goal, run_id=run_id, stops=0), requests
        nodes = tuple(node.name for node in self.gang.nodes)
        staged = self._all("stage", {name: requests[name] for name in nodes}, STAGE_S)
        if wrong := other_checkpoint(requests, {name: answer.checkpoint for name, answer in staged.items()}):
            raise wrong
        self._event(StepKind.ARM.value, nodes=nodes, why="staged")  # the answers show what another look would show
        self._arm(nodes)

    def _arm(self, nodes: Sequence[str]) -> None:
        self.watcher.step(self.gang.name, "checking ports, GPUs and the model on every node")
        request = ArmRequest(run_id=self.goal.run_id, deadline_s=ARM_S - MARGIN_S)
        answers = self._all("arm", dict.fromkeys(nodes, request), ARM_S)
        armed = tuple(name for name, answer in answers.items() if answer == StateAnswer(state=AgentState.ARMED))
        if len(armed) == len(self.gang.nodes):
            self._event(StepKind.GO.value, nodes=armed, why="all nodes are armed")
            self._go(armed)

    def _go(self, nodes: Sequence[str]) -> None:
        if self.before_go is not None and self.staged:
            self.before_go(self.gang, self.staged)
            self.staged = {}
        still_ours(self.fleet, [self.gang])
        self.watcher.step(self.gang.name, "go")
        self.gone = True
        self._all("go", dict.fromkeys(nodes, GangRequest(run_id=self.goal.run_id)), GO_S)

    def _stop_now(self, nodes: Sequence[str], *, run_id: str | None = None) -> None:
        """run_id: end that run alone, since a node that refused it may serve by another one; None: whatever is left."""
        still_ours(self.fleet, [self.gang])
        self.watcher.step(self.gang.name, "stopping what is left on " + ", ".join(nodes))
        self.goal = replace(self.goal, stops=self.goal.stops + 1)
        clear = not self.goal.run_id  # else the nodes keep why our run has ended
        order = StopRequest(
            run_id=run_id,
            now=True,
            clear=clear,
            deadline_s=KILL_S - MARGIN_S,
            because=because(self.broke),
        )
        self._on("stop", dict.fromkeys(nodes, order), KILL_S)

    def _lost(self, view: GangView) -> DeployError:
        """Nothing can be staged or told to start without every node. What other commands began, and ranks that run
        already, are left alone."""
        if self.followed and view.state is GangState.FAILED:
            return failure_of(view)
        failure = together({node.name: node.error for node in view.unreachable if node.error is not None})
        self.leave = self.gone or not self.goal.run_id
        if self.gone:
            failure.what += f"\n    what was started of {self.gang.name} continues on its own"
        self.broke = Cause(node=view.unreachable[0].name, text=f"can't be reached: {failure.what}", fix=failure.fix)
        return failure

    def _all(self, verb: str, requests: Mapping[str, _Request], deadline_s: float) -> Mapping[str, Any]:
        """Every node's answer. Raises the first failure."""
        asked = time.monotonic()
        answers = self._on(verb, requests, deadline_s)
        if time.monotonic() - asked >= CONNECT_S:  # else its connection may have broken only just now
            self.lost |= {name for name, why in answers.failures.items() if isinstance(why, Unreachable)}
        self.broke = _what_broke(answers.failures)
        return answers.all()

    def _on(self, verb: str, requests: Mapping[str, _Request], deadline_s: float) -> PerNode[Message]:
        """requests: by node; where each belongs is added here."""
        token = fence(self.fleet, self.gang.name)

        def one(session: Session) -> Message:
            asked = replace(requests[session.spec.name], token=token, **request_keys(session.spec, self.gang.name))
            return ask(session, verb, asked, ANSWERS[verb], deadline_s=deadline_s)

        return self.fleet.on_every(one, only=list(requests))

    def _event(self, what: str, **details: Any) -> None:
        if self.record is not None:
            self.record.event(what, gang=self.gang.name, **details)


def _what_broke(failures: Mapping[str, DeployError]) -> Cause | None:
    """A lost node comes before a node that refused, of which its agent may know more."""
    lost = {name: failure for name, failure in failures.items() if isinstance(failure, Unreachable)}
    for name, failure in (lost or failures).items():
        return Cause(node=name, text=f"the start command failed: {failure.what}", fix=failure.fix)
    return None


def failure_of(view: GangView, why: str = "") -> GangFailed:
    """The one cause as an error: where it failed first, what happened, the lines that show it, the fix."""
    cause = view.cause
    if cause is None:
        return GangFailed(why or "it ended without a known cause", where=f"gang {view.name}", fix="l40s-deploy logs")
    place = f"gang {view.name}: {cause.node}" + (f" TP{cause.tp_rank}" if cause.tp_rank is not None else "")
    what = cause.text + "".join(f"\n    | {line}" for line in cause.lines)
    lost = ", ".join(node.name for node in view.unreachable)
    if lost:
        what += f"\n    {lost} can't be reached; it stops its own ranks when its lease expires"
    return GangFailed(what, where=place, fix=cause.fix or "l40s-deploy logs")


def everybody_answers(views: Sequence[GangView]) -> None:
    """Nothing is started unless every node can be reached. Raises the failure; one for all if there are several."""
    lost = {node.name: node.error for view in views for node in view.nodes if node.error is not None}
    if lost:
        raise together(lost)
