"""The loop of a guard about one gang, or the router: looks at it, decides by `gang.guarding`, and acts.

A restart asks the doctor, ends what is left on every node, and starts the plan that the nodes have. A stop finding, or
a node that does not answer the doctor, holds it back: both may pass, so it is looked at again, and no restart is
counted. One that breaks half-way leaves the gang failed on its nodes, so that the next look sees it; `down` is what
clears that. Each step has a limit, and a node that is lost during one counts as away from that moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import Examination
from orchestrator.gang.guarding import (
    GuardAction,
    GuardDecision,
    GuardMemory,
    comes_back,
    decide,
    does_without,
    held_back,
    may_finish,
    not_back_yet,
    noted,
    on_other_nodes,
    restarted,
    restarted_for,
    returned,
    returning,
    settling,
    waits_in_vain,
)
from orchestrator.gang.operations import GangOperation
from orchestrator.gang.remarks import powerless, unaccepted, with_findings
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import Objection, against_starts, objection
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.examination import examine
from orchestrator.gang.steps.guard.notice_hook import Hook, run_hook
from orchestrator.gang.steps.guard.request import GuardRequest, GuardWatcher
from orchestrator.gang.steps.guard.watches import HealthWatch, RouterWatch, ended, heard
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.restart import finish
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.host import certificate_findings, router_gang
from orchestrator.gang.steps.router.mixing import refuse_mixed_models
from orchestrator.gang.steps.router.routing import raise_router, rejoin
from orchestrator.gang.steps.staging import facts_of_now, staged_plan
from orchestrator.gang.steps.status.reports import as_it_runs, interrupted, is_worked_on, see
from orchestrator.gang.steps.up import asked_of, planned_again, up, words_to_return
from orchestrator.gang.steps.up_operation import UpRequest, UpResult
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import staffed
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Event, GangSpec, Inventory, RouterSpec
from orchestrator.model.lacks import lack_of
from orchestrator.model.notice import Notice
from orchestrator.model.plan import Plan
from orchestrator.planning.choices import TCP
from orchestrator.planning.facts_of_now import lost_gpus
from orchestrator.protocol.errors import DeployError, FindingsError, InputError, LockHeld, Unreachable
from orchestrator.protocol.report import Cause
from orchestrator.protocol.staging import Asked
from orchestrator.remote.fleet import Fleet, StragglerWait

LOOK_EVERY_S = 2.0
GUARD_LOCK = "guard."
"""Before the gang's name: the lock that keeps a second guard away and everybody else not."""

OVER_TCP = ("TRAFFIC-ON-TCP", TCP)
NO_DECISION = GuardDecision(GuardAction.NOTHING)


@dataclass(frozen=True, slots=True)
class Orders:
    """By what a post goes on."""

    inventory: Inventory
    gang: GangSpec
    places: RouterWatch


@dataclass
class GangPost:
    """The loop about one gang.

    view: as it was seen last; surrender: why it was given up, once that has been reported
    places: where the router has it; health: what the doctor would refuse it for
    held: gives back its guard lock and its connections; manned: it has them
    wanted: by what it is to go on from the next look; taken: by what it goes on
    _heard_at: when one of its nodes answered last; _failed_looks: in a row; _powerless: why a due restart is impossible
    _back: runs, and what was told of their RDMA ports that work again; _checked_at: in monotonic seconds
    """

    inventory: Inventory
    fleet: Fleet
    gang: GangSpec
    request: GuardRequest
    watcher: GuardWatcher
    memory: GuardMemory = field(default_factory=GuardMemory)
    decision: GuardDecision = NO_DECISION
    view: GangView | None = None
    surrender: GuardDecision | None = None
    defect: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    held: ExitStack = field(default_factory=ExitStack)
    manned: bool = True
    wanted: Orders | None = None
    taken: Orders | None = None
    _told: str = ""
    places: RouterWatch = field(default_factory=lambda: RouterWatch(None))
    health: HealthWatch = field(init=False)
    _heard_at: float = field(default_factory=time.monotonic)
    _failed_looks: int = 0
    _powerless: tuple[Finding, ...] = ()
    _back: frozenset[tuple[str, str]] = frozenset()
    _checked_at: float | None = None

    def __post_init__(self) -> None:
        self.health = HealthWatch(self.inventory.path)

    def planned(self, plan: Plan) -> None:
        """Of what a decision starts."""
        self.watcher.planned(plan)

    def step(self, gang: str, words: str) -> None:
        """Of what a decision starts."""
        self.watcher.step(gang, words)

    def seen(self, views: Sequence[GangView]) -> None:
        """What a start goes through; a node that it loses is away from then on."""
        self.watcher.seen(views)
        for view in views:
            if view.name == self.gang.name:
                self.memory = noted(self.memory, view, time.monotonic())

    def _remember(self, memory: GuardMemory) -> None:
        """Go back to an earlier memory, except for what the nodes have done since."""
        self.memory = replace(memory, lost=self.memory.lost)

    def stand(self) -> None:
        """Look, decide, act, again and again until `ended`."""
        try:
            while not self.ended.is_set():
                self._take_orders()
                self._look_again()
                if not self.memory.given_up:
                    self.surrender = None
                elif self.surrender is None:
                    self.surrender = self.decision
                    self._notify(Event.GIVEN_UP, self.decision.why, f"l40s-deploy why {self.gang.name}")
                if self.request.once:
                    return
                self.ended.wait(LOOK_EVERY_S)
        except BaseException as defect:
            self.defect = defect

    def man(self) -> None:
        """Connect to the gang's machines, and keep other guards away. Raises LockHeld where there is one."""
        self.held.close()
        self.fleet = self.held.enter_context(Fleet(self.gang.machines))
        self.held.enter_context(_guard_lock(self.fleet, self.gang, self.request))
        self.manned = True

    @property
    def is_relieved(self) -> bool:
        """Whether what it knows of the inventory is old."""
        return self.ended.is_set() or self.wanted is not self.taken

    def _take_orders(self) -> None:
        wanted = self.wanted
        if wanted is None or wanted is self.taken:
            return
        if wanted.gang.machines != self.gang.machines:
            self.manned, self.memory = False, on_other_nodes(self.memory)
        self.inventory, self.gang, self.places = wanted.inventory, wanted.gang, wanted.places
        self.taken = wanted

    def _look_again(self) -> None:
        """A defect of ours at one look is said, and ends neither this loop nor the others: somebody relies on them."""
        try:
            if not self.manned:
                self.man()
            self._look()
            self._failed_looks = 0
        except DeployError as failure:
            if self.request.once:
                raise
            self._warn(f"this look failed: {failure.where}: {failure.what}")
            self._look_failed(f"{failure.where}: {failure.what}", failure.fix)
        except Exception as defect:
            if self.request.once:
                raise
            if (lack := lack_of(defect)) is not None:
                self._warn(f"this look failed: {lack.where}: {lack.what}")
                self._look_failed(f"{lack.where}: {lack.what}", lack.fix)
                return
            frame = traceback.extract_tb(defect.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            self._warn(f"this look failed by a defect of l40s-deploy ({place}: {defect!r:.200}); report it")
            self._look_failed(f"a defect of l40s-deploy ({place}: {defect!r:.200})", "l40s-deploy support-bundle")

    def _look_failed(self, why: str, fix: str) -> None:
        self._failed_looks += 1
        if self._failed_looks == self.request.policy.tell_at:
            self._say_powerless(f"its looks fail: {why}", fix)

    def _say_powerless(self, why: str, fix: str) -> None:
        """A restart is due, or nobody knows whether it is, and can't be: said once, until the gang serves again."""
        view = self.view or GangView(name=self.gang.name, state=GangState.UNKNOWN)
        self._powerless = (powerless(view, why, fix),)
        self._tell_of(with_findings(view, self._powerless))

    def _tell_of(self, view: GangView) -> None:
        if self.request.notifier is not None:
            self.request.notifier.look(view)

    def _known_of(self, seen: GangView) -> GangView:
        """The view with what stands beside it: its nodes' silence, its place in the router, what a restart would be
        refused for, and what keeps the guard from a restart."""
        now = time.monotonic()
        if seen.serves:
            self._powerless = ()
            self.health.ask_if_due(self._as_it_runs, seen.run_id, now, wait=self.request.once)
        answering = [node.name for node in seen.nodes if node.error is None]
        entry = self.places.finding(seen, now, lambda: is_worked_on(self.fleet, self.gang, answering))
        entry = unaccepted(entry, self.gang)
        known = self.health.findings if seen.serves else ()
        over = ended(seen, lambda: self._begun(seen) is not None or is_worked_on(self.fleet, self.gang, answering))
        return with_findings(self._heard(over, now), (*entry, *known, *self._powerless))

    def _heard(self, seen: GangView, now: float) -> GangView:
        """The view, as unheard where none of its nodes has answered for a lease."""
        if seen.state is not GangState.UNKNOWN:
            self._heard_at = now
        return heard(seen, now - self._heard_at, max(node.lease_s for node in self.gang.nodes))

    def _look(self) -> None:
        (seen,) = see(self.fleet, [self.gang], patience=StragglerWait())
        if self.ended.is_set():
            return  # its connections may be closed: what was seen says nothing
        self.view = self._known_of(seen)
        self.watcher.seen([self.view])
        self._tell_of(self.view)
        # once for each port and run: one that comes and goes is no news
        if new := [words for words in self.view.rail_words(back=True) if (self.view.run_id, words) not in self._back]:
            self._hook(self.request.on_ready, "back", "; ".join(new))
            self._back |= {(self.view.run_id, words) for words in new}
        begun = self._begun(self.view)
        self.decision, self.memory = decide(self.view, self.memory, time.monotonic(), self.request.policy, begun)
        if self.is_relieved:
            return  # the next look decides, by the new inventory, or nobody does
        self._tell(self.decision)
        if waits_in_vain(self.decision, self.view, self.memory, time.monotonic(), self.request.policy):
            self._say_powerless(self.decision.reason, "switch the node on, or run the guard with --degrade-after 10m")
        self._act(self.view, begun)

    def _act(self, seen: GangView, begun: GangOperation | None) -> None:
        """Do what was decided."""
        if self.decision.do is GuardAction.RESTART:
            self._restart(self.decision.why, begun)
        elif self.decision.do is GuardAction.DEGRADE:
            self._go_on_without(self.decision)
        elif self.decision.do is GuardAction.REPLAN:
            self._replan(self.decision, seen)
        elif self.decision.do is GuardAction.RETURN:
            self._return(self.decision.why)
        elif self.decision.do is GuardAction.GIVE_UP:
            self._failed(self.decision.why)
        elif self.decision.do is GuardAction.NOTHING and seen.serves and self._is_due():
            self._checked_at = time.monotonic()
            asking = threading.Thread(target=self._check, daemon=True)
            asking.start()
            if self.request.once:
                asking.join()

    def _is_due(self) -> bool:
        check, last = self.request.check, self._checked_at
        return check is not None and (last is None or time.monotonic() - last >= check.every_s)

    def _check(self) -> None:
        """Beside the looking, over connections of its own: answers take seconds, and an engine may hang meanwhile."""
        gang, check = self._as_it_runs, self.request.check
        with Fleet(gang.nodes) as fleet:
            finding = check.finding(fleet, gang) if check is not None else None
        if finding is not None:
            words = f"{finding.id}: {finding.title}: {finding.evidence[0]}"
            self.watcher.step(self.gang.name, f"{words}; fix: {finding.fix}")
            self._notify(Event.FINDING, words, finding.fix)
            self._failed(words)

    @property
    def _as_it_runs(self) -> GangSpec:
        """The gang on the nodes that its run was started on."""
        return as_it_runs(self.gang, self.view) if self.view is not None else self.gang

    def _begun(self, seen: GangView) -> GangOperation | None:
        """What an interrupted command has left begun on this gang. Nodes that did not answer are not asked again: a
        look at a gang that has lost one would take as long as that node may."""
        answering = [node.name for node in seen.nodes if node.error is None]
        return next(iter(interrupted(self.fleet, [self.gang], only=answering)), None)

    def _restart(self, why: str, begun: GangOperation | None) -> None:
        """One attempt; what comes of it is seen at the next look."""
        try:
            with (
                connected(self.inventory) as operation,
                self._turn(operation) as turn,
                GangLock(self.fleet, self._as_it_runs, self.request.command, why=why) as lock,
            ):
                (now,) = see(self.fleet, [self.gang], patience=StragglerWait())
                patient = replace(self.memory, not_before=0.0)
                if decide(now, patient, 0.0, self.request.policy, begun)[0].do is not GuardAction.RESTART:
                    return  # somebody was quicker than our lock
                left = begun if begun is not None and may_finish(begun) else None
                if (against := self._against(operation, now, left)) is not None:
                    self._hold_back(why, against)
                    return
                self.memory = restarted(self.memory, time.monotonic(), self.request.policy)
                self._note_hang(now)
                turn.announce()
                if left is not None:
                    self.view = finish(operation.router, lock, left, self, timeout_s=self.request.timeout_s) or now
                else:
                    self._again(operation, now, why)
        except LockHeld as held:
            self._tell(GuardDecision(GuardAction.WAIT, f"{why}; {held.what}"))
        except DeployError as failure:
            self._warn(f"the restart did not help: {failure.where}: {failure.what}")
        else:
            self._tell(GuardDecision(GuardAction.NOTHING, "it has been restarted"))
            self._hook(self.request.on_ready, "ready", why)

    def _note_hang(self, now: GangView) -> None:
        """A hang that comes back is an alarm, to the receivers and to the hook: restarts only hide it."""
        before = self.memory.hangs
        self.memory = restarted_for(self.memory, now, time.monotonic())
        words = comes_back(self.memory) if self.memory.hangs != before else ""
        if words and now.cause is not None:
            self._warn(f"{words}; {now.cause.text}")
            self._notify(Event.FINDING, f"{words}; {now.cause.text}", now.cause.fix)
            self._failed(words)

    def _turn(self, operation: Operation) -> RouterTurn:
        """To announce a recovery behind the router; it waits for nobody."""
        return RouterTurn(operation, [self.gang.name], self.request.command, self.watcher, patience_s=0.0)

    def _go_on_without(self, decision: GuardDecision) -> None:
        """Start the gang with spares, and on the nodes that are left. Where no layout fits them, that is said once."""
        there, without, before = staffed(self.gang, decision.without), decision.without, self.memory
        spares = tuple(node.name for node in there.nodes if node.spare)
        if (against := self._against_the_rest(there)) is not None:
            self._hold_back(decision.why, against, on_fewer=True)
            return
        words = f"{len(there.nodes)} of {len(self.gang.nodes)} nodes, without {', '.join(without)}"
        words += f", with the spare {', '.join(spares)}" if spares else ""
        try:
            self._start_anew(decision, there, words)
        except InputError as impossible:
            self._remember(replace(before, hopeless=without))
            why = f"can't continue with {words}: {impossible.what}; {impossible.fix}"
            self.decision = GuardDecision(GuardAction.WAIT, why)
            self._tell(self.decision)
            self._say_powerless(why, f"l40s-deploy why {self.gang.name}")
            self._failed(why)
        except FindingsError as refused:
            self._remember(before)
            self._hold_back(decision.why, Objection(error=refused), on_fewer=True)
        except DeployError as failure:
            if spares:  # whatever the reason was, the next start is without them
                self._remember(replace(before, unfit=tuple(dict.fromkeys((*before.unfit, *spares)))))
            self._warn(f"going on with {words} did not work: {failure.where}: {failure.what}")

    def _replan(self, decision: GuardDecision, seen: GangView) -> None:
        """Start the gang by a plan that does without what its nodes have no more, unless they have it again."""
        there, before = staffed(self.gang, decision.without), self.memory
        with connected(self.inventory) as operation:
            against = self._against(operation, seen, None)
        if against is None:
            self.memory = replace(self.memory, outdated_since=None)
            return
        if against.outdated and (refused := self._against_the_rest(there)) is not None:
            against = replace(refused, outdated=True)
        elif against.outdated:
            words = f"{len(there.nodes)} of {len(self.gang.nodes)} nodes, planned anew"
            try:
                if (now := self._start_anew(decision, there, words)) is not None:
                    self.memory = replace(self.memory, replanned=now.plan_id)
            except (InputError, FindingsError) as impossible:
                self._remember(before)
                against = Objection(error=impossible, outdated=True)
            except DeployError as failure:
                self._warn(f"planning it anew did not help: {failure.where}: {failure.what}")
                return
            else:
                return
        self._hold_back(decision.why, against)

    def _start_anew(self, decision: GuardDecision, there: GangSpec, words: str) -> GangView | None:
        """By a new plan, for these nodes; words: what it is started on. None where somebody else holds the gang.
        Raises what `up` raises."""
        before = self.memory
        try:
            asked = asked_of(self.fleet, self._who_knows(there))
            self.memory = restarted(self.memory, time.monotonic(), self.request.policy)
            outcome = self._up(asked, decision.why, decision.without)
        except LockHeld as held:
            self._remember(before)
            self._tell(GuardDecision(GuardAction.WAIT, f"{decision.why}; {held.what}"))
            return None
        self.view = outcome.views[0]
        prices = [f"{finding.title}; {finding.effect}" for finding in outcome.plan.findings if finding.id in OVER_TCP]
        self._warn("; ".join([f"it serves at {self.view.service_url} on {words}", *prices]))
        self._hook(self.request.on_ready, "ready", f"{decision.why}; it serves on {words}")
        return self.view

    def _against_the_rest(self, there: GangSpec) -> Objection | None:
        """What the doctor has against a start on just these nodes; None for nothing."""
        self.watcher.step(self.gang.name, f"running doctor on {', '.join(node.name for node in there.nodes)}")
        try:
            return objection(examine(self.fleet, {node.name: node for node in there.nodes}), self.gang.name)
        except DeployError as failure:
            return Objection(error=failure)

    def _who_knows(self, there: GangSpec) -> GangSpec:
        """Those of these nodes that know what was asked of the gang: members of its newest run, else whoever is none
        of its spares."""
        members = {node.name for node in self._as_it_runs.nodes}
        known = tuple(node for node in there.nodes if node.name in members)
        return replace(there, nodes=known or tuple(node for node in there.nodes if not node.spare))

    def _return(self, why: str) -> None:
        """Back to all nodes, where the doctor allows it; else look again later."""
        try:
            (now,) = see(self.fleet, [self.gang], patience=StragglerWait())
            asked = asked_of(self.fleet, as_it_runs(self.gang, now))
            examined = examine(self.fleet, {node.name: node for node in self.gang.nodes})
            against = objection(examined, self.gang.name) or self._lost(now.missing, examined.cluster, asked)
            over_tcp = _over_tcp(examined)
            if against is not None:
                self._warn(f"{why}; {against.error.where}: {against.error.what}")
            elif does_without(now, self.memory) and over_tcp is not None and not now.missing:
                self._warn(f"{why}; {over_tcp.node}: {over_tcp.title}; {over_tcp.effect}")
            elif not self.request.restores or self.memory.returned >= self.request.policy.return_limit:
                self._say_how_to_return(why, words_to_return(self.gang, asked))
            elif not self.request.once and self.memory.ports != (ports := _active_ports(examined.cluster)):
                wait = f"{why}; waiting until the RDMA ports of two looks in a row are the same"
                self._tell(GuardDecision(GuardAction.WAIT, wait))
                self.memory = settling(self.memory, time.monotonic(), self.request.policy, ports)
                return
            else:
                self.memory = returning(self.memory, time.monotonic(), self.request.policy)
                self.view, self.memory = self._up(asked, why).views[0], returned(self.memory)
                self._tell(GuardDecision(GuardAction.NOTHING, f"it serves on all {len(self.gang.nodes)} nodes again"))
                self._hook(self.request.on_ready, "ready", f"{why}; it serves on all nodes again")
                return
        except DeployError as failure:
            self._warn(f"{why}; not on all nodes yet: {failure.where}: {failure.what}")
        self.memory = not_back_yet(self.memory, time.monotonic(), self.request.policy)

    def _lost(self, missing: Collection[str], seen: Cluster, asked: Asked) -> Objection | None:
        """A GPU that one of these nodes had in its last plan and has lost: its rank moves to another one by an
        operator's plan only."""
        for node in (member for member in self.gang.nodes if member.name in missing):
            with contextlib.suppress(InputError):  # it has run nothing
                request = staged_plan(self.fleet, replace(self.gang, nodes=(node,)), whole=False).requests[node.name]
                if lost := lost_gpus(request, seen.topologies[node.name]):
                    fix = words_to_return(self.gang, asked)
                    words = f"it lost {', '.join(lost)}; to use others: {fix}"
                    return Objection(error=FindingsError(words, where=node.name, fix=fix))
        return None

    def _say_how_to_return(self, why: str, command: str) -> None:
        what = "return to all nodes" if self.view is not None and self.view.missing else "return to the plan for RDMA"
        if not self.memory.looks:
            self._hook(self.request.on_ready, "back", f"{why}; {what}: {command}")
        often = f" It was returned {self.memory.returned} times and failed again each time: find out why first."
        often = often if self.request.restores else ""
        self._warn(f"{why}, and doctor finds nothing against it.{often} {what[0].upper()}{what[1:]}: {command}")

    def _up(self, asked: Asked, why: str, without: Sequence[str] = ()) -> UpResult:
        """Plan the gang again and start it so, with the locks, checks and rollback of an `up`. Raises what that raises:
        InputError with the arithmetic where no layout fits the nodes that are left."""
        inventory, plan = planned_again(self.inventory, self.gang, asked, without)
        request = UpRequest(
            plan=plan,
            command=self.request.command,
            why=why,
            timeout_s=self.request.timeout_s,
            turn_s=0.0,
            hung_after_s=self.request.hung_after_s,
            replace=True,
            asked=asked,
        )
        with connected(inventory) as operation:
            outcome = up(operation.asked(), request, self)
        if outcome.failure is not None:
            raise outcome.failure
        return outcome

    def _against(self, operation: Operation, now: GangView, left: GangOperation | None) -> Objection | None:
        """What would stop a start stops a restart too; None for nothing.

        left: what a command has begun and not finished, if that is to be finished
        """
        if left is not None and now.run_id == left.was_run and now.serves:
            return None
        try:
            plan = staged_plan(self.fleet, self._as_it_runs)
            self.watcher.step(self.gang.name, "running doctor")
            if operation.router is not None:
                with contextlib.suppress(Unreachable):  # a router that nobody reaches is no reason against a recovery
                    refuse_mixed_models(operation.router, operation.glance(), {self.gang.name: plan})
            return against_starts(self.fleet, [plan], self.watcher)
        except DeployError as failure:
            if isinstance(failure, InputError) and left is not None:
                return None  # its nodes do not hold one plan: what was begun needs none
            return Objection(error=failure)

    def _hold_back(self, why: str, against: Objection, *, on_fewer: bool = False) -> None:
        now, policy = time.monotonic(), self.request.policy
        words = f"{against.error.where}: {against.error.what}; {against.error.fix}"
        self.memory = held_back(
            self.memory, now, policy, words, against.nodes, outdated=against.outdated, on_fewer=on_fewer
        )
        self.decision = GuardDecision(GuardAction.WAIT, f"{why}; {words}")
        self._tell(self.decision)
        if self.memory.held_back == policy.tell_at or self.request.once:
            self._say_powerless(f"{against.error.where}: {against.error.what}", against.error.fix)
            self._failed(self.decision.why)

    def _again(self, operation: Operation, now: GangView, why: str) -> None:
        plan = staged_plan(self.fleet, self._as_it_runs).hung_after(self.request.hung_after_s)
        self._stop(plan.gang, now, why)
        start = plan.again(facts_of_now(self.fleet, self.step))
        views = raising.raise_all(self.fleet, [start], self, timeout_s=self.request.timeout_s)
        rejoin(operation.router, views, self.watcher)
        self.view = views[0]

    def _stop(self, gang: GangSpec, now: GangView, why: str) -> None:
        """The nodes say what it is restarted for where that does not get so far that another run is staged."""
        stop(self.fleet, [gang], self, now=True, cause=now.cause or Cause(node=self.gang.leader.name, text=why))

    def _notify(self, event: Event, text: str, fix: str) -> None:
        if self.request.notifier is not None:
            self.request.notifier.tell(Notice(event=event, subject=self.gang.name, text=text, fix=fix, at=time.time()))

    def _failed(self, why: str) -> None:
        self._hook(self.request.on_failed, "failed", why)

    def _hook(self, hook: Hook, event: str, why: str) -> None:
        if trouble := run_hook(hook, event, gang=self.gang.name, why=why):
            self.watcher.step(self.gang.name, f"the hook for {event} failed: {trouble}")

    def _warn(self, words: str) -> None:
        self._tell(GuardDecision(GuardAction.WARN, words))

    def _tell(self, decision: GuardDecision) -> None:
        """Only what is new: a countdown says the same again."""
        words = f"{decision.do.value} {decision.reason}"
        if words != self._told:
            self._told = words
            self.watcher.decided(self.gang.name, decision)


@dataclass(kw_only=True)
class RouterPost(GangPost):
    """The loop about the router. Another guard may watch it already: this one takes over when that one has ended."""

    spec: RouterSpec
    ours: bool = False

    def man(self) -> None:
        """Connect to its host. Its guard lock is taken once no other guard has it."""
        self.held.close()
        self.gang = router_gang(self.spec)
        self.fleet = self.held.enter_context(Fleet(self.gang.nodes))
        self.ours, self.manned = False, True

    def _look(self) -> None:
        """As at a gang, once no other guard holds its guard lock."""
        if not self.ours:
            with contextlib.suppress(LockHeld):
                self.held.enter_context(_guard_lock(self.fleet, self.gang, self.request))
                self.ours = True
        if self.ours:
            super()._look()

    def _known_of(self, seen: GangView) -> GangView:
        """Its own state and its certificate: the doctor has nothing to say of it."""
        findings = certificate_findings(self.spec, seen)
        return with_findings(self._heard(seen, time.monotonic()), findings)

    def _is_due(self) -> bool:
        return False

    def _against(self, *_: object) -> Objection | None:
        """It needs nothing that the doctor checks."""
        return None

    def _again(self, operation: Operation, now: GangView, why: str) -> None:
        if now.running:
            self._stop(self.gang, now, why)
        self.view = raise_router(operation, Router(self.spec, self.fleet), self.watcher)


def _guard_lock(fleet: Fleet, gang: GangSpec, request: GuardRequest) -> GangLock:
    """A node that is down does not prevent guarding the others."""
    return GangLock(fleet, replace(gang, name=GUARD_LOCK + gang.name), request.command, partial=True)


def _over_tcp(examined: Examination) -> Finding | None:
    return next((finding for finding in examined.findings if finding.id in OVER_TCP), None)


def _active_ports(cluster: Cluster) -> tuple[str, ...]:
    """Every node's active RDMA ports."""
    return tuple(
        f"{node} {port.name}"
        for node, topology in sorted(cluster.topologies.items())
        for port in topology.rdma
        if port.active
    )
