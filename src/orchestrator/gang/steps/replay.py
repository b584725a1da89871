"""The plan that a gang runs, or ran last, as its nodes have it: enough to start the very same again.

Whoever restarts need not be who started: no file of this machine is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.doctor.steps.look import look
from orchestrator.gang.steps.raising import Rising, Watcher
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.errors import DeployError, InputError, NodeError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.secret_text import shown_env, shown_flags
from orchestrator.model.topology import NETWORKS, Topology
from orchestrator.planning.environment import moved_variables
from orchestrator.planning.facts_of_now import moved
from orchestrator.protocol.message import Unreadable, unknown_keys
from orchestrator.protocol.staging import Secrets, StagingRequest, launch_digest
from orchestrator.protocol.verbs import GangRequest, StagedAnswer
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal, ask_staged
from orchestrator.remote.session import Session
from orchestrator.rendering import exported_anew
from orchestrator.topology.build import build
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import networks_met

OfNow = Callable[[GangSpec, Mapping[str, StagingRequest]], Mapping[str, StagingRequest]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What was staged on a gang's nodes. requests: by node name, in node-rank order, without the run's key."""

    gang: GangSpec
    requests: Mapping[str, StagingRequest]

    @property
    def plan_id(self) -> str:
        """The same on every node."""
        return self._leader.plan_id

    @property
    def model(self) -> str:
        """The model profile's name."""
        return self._leader.model

    @property
    def accepted(self) -> tuple[str, ...]:
        """Findings that were set aside when the plan was made, `ID` or `ID@node`."""
        return self._leader.asked.accept if self._leader.asked else ()

    @property
    def service_url(self) -> str:
        """Where the gang serves."""
        return self._leader.service.url if self._leader.service else ""

    @property
    def http(self) -> Mapping[str, str]:
        """The engine's endpoints: alive, generate, models, ..."""
        return self._leader.watch.http

    @property
    def drain_s(self) -> float:
        """How long running requests get when the gang is stopped, shutdown included."""
        stop = self._leader.watch.stop
        return stop.drain_s + stop.shutdown_s

    @property
    def _leader(self) -> StagingRequest:
        return self.requests[self.gang.leader.name]

    def hung_after(self, seconds: float | None) -> Staged:
        """The same with another patience before its engine counts as hung; None: as it was staged."""
        changed = {name: replace(one, watch=one.watch.hung_after(seconds)) for name, one in self.requests.items()}
        return replace(self, requests=changed)

    def rising(self, *, going_back: bool = False, of_now: OfNow | None = None) -> Rising:
        """The same again, under a new run id and a new key. going_back: over another plan that was staged since,
        so that each node takes its secrets back too. of_now: makes the requests of these when they are staged."""

        def requests(run_id: str, key: str) -> Mapping[str, StagingRequest]:
            return {
                name: replace(
                    request.tested_for(0),
                    run_id=run_id,
                    key=key,
                    secrets=Secrets(of_run=request.run_id) if going_back else None,
                )
                for name, request in (of_now(self.gang, self.requests) if of_now else self.requests).items()
            }

        nodes = [_shown(self.requests[node.name], node) for node in self.gang.nodes if node.name in self.requests]
        document = {"plan_id": self.plan_id, "again": True, "nodes": nodes}
        return Rising(gang=self.gang, plan_id=self.plan_id, document=document, requests=requests)


def _shown(request: StagingRequest, node: NodeSpec) -> dict[str, Any]:
    """A request as a record may keep it: without secrets."""
    flags = shown_flags(request.flags)
    env = shown_env(request.env, node.overrides.env_public)
    argv = [*request.command, *(word for words in flags for word in words)] if flags else list(request.argv)
    return {**request.kept(), "env": env, "flags": [list(words) for words in flags], "argv": argv}


def staged_plan(fleet: Fleet, gang: GangSpec, *, run_id: str = "", whole: bool = True) -> Staged:
    """Ask every node of a gang for its last staged run, or for an older run that it has kept. whole: of all members of
    that run; else of those that the gang has, to read, not to start.

    Raises InputError where nothing was ever started, or where the nodes do not hold one plan for just these nodes;
    NodeError where a request can't be read or holds what only a newer release knows; Unreachable where one does not
    answer.
    """

    answered = _ask(fleet, gang, run_id)
    for failure in answered.failures.values():
        if isinstance(failure, NodeRefusal) and failure.kind == "no-run":
            raise _nothing(gang.name, failure.where)
    answers = answered.all()
    requests = {node.name: staged_request(node, gang.name, answers[node.name]) for node in gang.nodes}
    if whole:
        _refuse_disagreement(gang, requests)
    return Staged(gang=gang, requests=requests)


def newest_run(fleet: Fleet, gang: GangSpec) -> StagingRequest | None:
    """What these nodes know of the gang's newest run; None where they know of none. A node that was away for a while
    knows an older one."""
    answers, known = _ask(fleet, gang).values, []
    for node in gang.nodes:
        if node.name in answers:
            with suppress(DeployError):
                known.append(staged_request(node, gang.name, answers[node.name]))
    return max(known, key=lambda request: request.run_id, default=None)


def _ask(fleet: Fleet, gang: GangSpec, run_id: str = "") -> PerNode[StagedAnswer]:
    def one(session: Session) -> StagedAnswer:
        return ask_staged(session, GangRequest(**where(session.spec, gang.name), run_id=run_id or None))

    return fleet.on_every(one, only=[node.name for node in gang.nodes])


def staged_request(node: NodeSpec, gang: str, answer: StagedAnswer) -> StagingRequest:
    """What was last staged on a node, to be staged there again. Raises InputError if that is nothing, NodeError
    if we can't read all of it: to start less than what ran would be another plan."""
    raw = answer.request
    if not raw or not answer.launch_script:
        raise _nothing(gang, node.name)
    found = StagingRequest.read(raw)
    if isinstance(found, Unreadable):
        raise NodeError(
            f"what was staged there can't be read: {found}",
            where=node.name,
            fix=f"run `l40s-deploy down {gang}`, then `l40s-deploy up --model NAME --gang {gang}`",
        )
    unknown = unknown_keys(StagingRequest, raw)
    if unknown:
        raise NodeError(
            f"the gang was started by a newer l40s-deploy; this one does not know {', '.join(unknown[:5])}",
            where=node.name,
            fix=f"restart it with that release or a newer one, or stop it with `l40s-deploy down {gang}`",
        )
    return replace(found, state_dir=node.state_dir, gang=gang, launch_script=answer.launch_script)


def _nothing(gang: str, place: str) -> InputError:
    return InputError(
        f"gang {gang} was never started: no plan is staged on its nodes",
        where=place,
        fix=f"run `l40s-deploy up --model NAME --gang {gang}`",
    )


def _refuse_disagreement(gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
    names = tuple(requests)
    for name, request in requests.items():
        if request.plan_id != requests[names[0]].plan_id:
            raise InputError(
                f"{name} has another plan ({request.plan_id}) than {names[0]}"
                f" ({requests[names[0]].plan_id}): an `up` was interrupted",
                where=f"gang {gang.name}",
                fix=f"run `l40s-deploy up --model NAME --gang {gang.name}`",
            )
        if request.members != names:
            raise InputError(
                f"the plan on {name} is for the nodes {', '.join(request.members)}; "
                f"the inventory's gang is {', '.join(names)}",
                where=f"gang {gang.name}",
                fix=f"plan for the current gang: run `l40s-deploy up --model NAME --gang {gang.name}`",
            )


def facts_of_now(fleet: Fleet, watcher: Watcher) -> OfNow:
    """What `Staged.rising` does to its requests at every start: what was staged is started with the facts of now.
    Interface, RDMA ports and GID index are resolved each time; inventory, profile and flags stay, and so does the
    plan's id. What moved is said, a line a node. A node that can't be looked at is left as it was: staging finds out
    why."""

    def of_now(gang: GangSpec, requests: Mapping[str, StagingRequest]) -> Mapping[str, StagingRequest]:
        known = {name: build(snapshot) for name, snapshot in look(fleet, list(gang.nodes)).values.items()}
        resolved = {}
        for node in gang.nodes:
            request, words = requests[node.name], ""
            if node.name in known:
                request, words = resolved_on(node, request, known)
            if words:
                watcher.step(gang.name, f"{words} on {node.name}")
            resolved[node.name] = request
        return resolved

    return of_now


def resolved_on(node: NodeSpec, request: StagingRequest, known: Mapping[str, Topology]) -> tuple[StagingRequest, str]:
    """The request with what moved on this node, and that in words; ('' and as it was where nothing did, where the
    networks of some node were not read, or where its launch script is not one of ours). known: the gang's nodes as they
    are now, this one among them."""
    found = moved(request, Machine(node, known[node.name]), networks_met(known.values()))
    if found.network == request.network or any(one.lacks(*NETWORKS) for one in known.values()):
        return request, ""
    now = moved_variables(request.network, found.network)
    script = exported_anew(request.launch_script, request.env, now)
    if script is None:
        return request, ""
    return (
        replace(
            request,
            network=found.network,
            env={name: value for name, value in {**request.env, **now}.items() if value is not None},
            launch_script=script,
            launch_sha256=launch_digest(script),
        ),
        found.words,
    )
