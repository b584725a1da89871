"""What a gang's nodes are staged with (docs/agent.md): made of a plan, or read from the nodes themselves, which have
enough to start the very same again. Whoever restarts need not be who started: no file of this machine is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.engines.engine import STUB_FILE
from orchestrator.engines.registry import dialect
from orchestrator.gang.agreement import most_say, service_of
from orchestrator.gang.steps.status.reports import refuse_elsewhere, request_keys, see
from orchestrator.loading.resources import template
from orchestrator.model.advice import put_back, start_with_a_model
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.per_node import PerNode, collected
from orchestrator.model.plan import GangPlan
from orchestrator.model.secret_text import fingerprint, is_secret, shown_flags, shown_part
from orchestrator.model.topology import NETWORKS, Topology
from orchestrator.planning.environment import moved_variables
from orchestrator.planning.facts_of_now import moved
from orchestrator.planning.older_staging import completed
from orchestrator.planning.steps.look import look
from orchestrator.planning.steps.plan import api_key
from orchestrator.protocol.errors import DeployError, FindingsError, InputError, NodeError, StagedByNewer
from orchestrator.protocol.message import Unreadable, unknown_keys
from orchestrator.protocol.staging import (
    PROTOCOL,
    Asked,
    NodePlan,
    SecretFile,
    Secrets,
    StagingRequest,
    launch_digest,
    repair,
    words,
)
from orchestrator.protocol.verbs import GangRequest, StagedAnswer
from orchestrator.records.plans import recorded_url
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
    """What a gang's nodes have been staged with, or are to be.

    requests: by node name, in node-rank order, without a run's key
    document: the plan as this machine's record of the start keeps it; none: what the requests tell of it
    of_now:   makes these requests those of the moment when they are staged; None: they are
    remarks:  what reading requests of another release left out, or could not find, for the operator
    """

    gang: GangSpec
    requests: Mapping[str, StagingRequest]
    document: Mapping[str, Any] = field(default_factory=dict)
    of_now: OfNow | None = None
    remarks: tuple[str, ...] = ()

    @property
    def plan_id(self) -> str:
        """The same on every node."""
        return self._leader.plan_id

    @property
    def model(self) -> str:
        """The model profile's name."""
        return self._leader.model

    @property
    def served(self) -> tuple[str, ...]:
        """Names that its engine answers to."""
        return self._leader.served

    @property
    def asked(self) -> Asked | None:
        """What the plan was made for."""
        return self._leader.asked

    @property
    def accepted(self) -> tuple[str, ...]:
        """Findings that were set aside when the plan was made, `ID` or `ID@node`: what all nodes have alike."""
        accepted = [request.asked.accept if request.asked else () for request in self.requests.values()]
        return tuple(finding for finding in accepted[0] if all(finding in others for others in accepted))

    @property
    def api_key(self) -> str | None:
        """Fingerprint of the key that its engine asks for; None for none."""
        return self._leader.api_key

    @property
    def service_url(self) -> str:
        """Where the gang serves."""
        return self._leader.service.url if self._leader.service else ""

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
        changed = {
            name: replace(request, watch=request.watch.hung_after(seconds)) for name, request in self.requests.items()
        }
        return replace(self, requests=changed)

    def again(self, of_now: OfNow | None = None, *, going_back: bool = False) -> Staged:
        """To be started once more, without tests. going_back: over another plan that was staged since, so that each
        node takes its secrets back too."""
        requests = {
            name: replace(request.tested_for(0), secrets=Secrets(of_run=request.run_id) if going_back else None)
            for name, request in self.requests.items()
        }
        return replace(self, requests=requests, of_now=of_now)

    def of_run(self, run_id: str, key: str) -> Mapping[str, StagingRequest]:
        """What is staged, by node name."""
        requests = self.of_now(self.gang, self.requests) if self.of_now else self.requests
        return {name: replace(request, run_id=run_id, key=key) for name, request in requests.items()}

    def recorded(self) -> Mapping[str, Any]:
        """The document, without secrets."""
        requests = [self.requests[node.name] for node in self.gang.nodes if node.name in self.requests]
        nodes = [shown_part(request).kept() for request in requests]
        return self.document or {"plan_id": self.plan_id, "again": True, "nodes": nodes}


def staging_requests(
    gang: GangSpec,
    plan: GangPlan,
    scripts: Mapping[str, str],
    *,
    plan_id: str,
    run_id: str = "",
    hung_after_s: float | None = None,
    asked: Asked | None = None,
) -> dict[str, StagingRequest]:
    """The plan's parts by node name, without a run's key. hung_after_s: None for what the engine's dialect says. asked:
    what the plan was made for."""
    return {
        part.name: StagingRequest.of(
            replace(part, watch=part.watch.hung_after(hung_after_s)),
            run_id=run_id,
            plan_id=plan_id,
            asked=asked,
            secrets=_secrets(gang, plan, part),
            launch_script=scripts[part.name],
            launch_sha256=launch_digest(scripts[part.name]),
        )
        for part in plan.nodes
    }


def other_checkpoint(
    requests: Mapping[str, StagingRequest], read: Mapping[str, Mapping[str, str]]
) -> FindingsError | None:
    """Why a gang can't start where a node has another checkpoint than most of the others, or, where no copy has a
    majority, than the leader; None where all are the same. read: digests by file name, by node, of the files that each
    could read."""
    for name in dict.fromkeys(name for files in read.values() for name in files):
        digests = {node: read[node][name] for node in requests if name in read.get(node, {})}
        usual = max(digests.values(), key=list(digests.values()).count)
        good = next(node for node, digest in digests.items() if digest == usual)
        odd = [node for node, digest in digests.items() if digest != usual]
        if odd:
            folder = Path(requests[odd[0]].model_path)
            return FindingsError(
                f"{name} is not the one that {good} has: the nodes hold different checkpoints"
                + (f" ({', '.join(odd[1:])} too)" if odd[1:] else ""),
                where=f"{odd[0]}: {folder}",
                fix=repair(requests[good].model_path, odd[0], good),
            )
    return None


def _secrets(gang: GangSpec, plan: GangPlan, part: NodePlan) -> Secrets:
    """What the node keeps in files of its own (docs/agent.md); the key goes to the leader alone, who serves."""
    redact = tuple(value for name, value in part.env.items() if is_secret(name, value))
    shown = words((), shown_flags(part.flags))
    redact += tuple(word for word, seen in zip(words((), part.flags), shown, strict=True) if word != seen)
    if not part.api_key or not part.leads:
        return Secrets(redact=redact)
    key = api_key(gang)
    if fingerprint(key) != part.api_key:
        raise InputError(
            "the API key changed since the plan was made", where=f"gang {gang.name}", fix="run the command again"
        )
    named = dialect(plan.dialect).engine(plan.engine_version).secret_files(key, template(STUB_FILE))
    return Secrets(
        files=tuple(SecretFile(name=name, text=text) for name, text in named),
        redact=(key, *redact),
        authorization=f"Bearer {key}",
    )


def staged_plan(fleet: Fleet, gang: GangSpec, *, run_id: str = "", whole: bool = True) -> Staged:
    """Ask every node of a gang for its last staged run, or for an older run that it has kept. whole: of all members of
    that run; else of those that the gang has, to read, not to start.

    Raises InputError where nothing was ever started, or where the nodes do not hold one plan for just these nodes;
    NodeError where a request can't be read; StagedByNewer where a release with another protocol staged it; Unreachable
    where one does not answer; RunsElsewhere where the gang runs under another name or in another place.
    """
    answered = _ask(fleet, gang, run_id)
    for failure in answered.failures.values():
        if isinstance(failure, NodeRefusal) and failure.kind == "no-run":
            refuse_elsewhere(see(fleet, [gang]) if not run_id else ())
            raise _nothing(gang.name, failure.where)
    answers = answered.all()
    read = {node.name: read_staged(node, gang.name, answers[node.name]) for node in gang.nodes}
    requests = {name: node.request for name, node in read.items()}
    if whole:
        _refuse_disagreement(gang, requests, fleet.nodes)
        _refuse_another_address(gang, requests)
    by_words = collected((words, name) for name, node in read.items() for words in node.remarks)
    remarks = tuple(
        f"another l40s-deploy staged this on {', '.join(names)}: {words}" for words, names in by_words.items()
    )
    return Staged(gang=gang, requests=requests, remarks=remarks)


def newest_run(fleet: Fleet, gang: GangSpec) -> StagingRequest | None:
    """What these nodes know of the gang's newest run: its members as most of them have it, and of its addresses those
    that all of them have. None where they know of none. A node that was away for a while knows an older one."""
    answers, known = _ask(fleet, gang).values, []
    for node in gang.nodes:
        if node.name in answers:
            with suppress(DeployError):
                known.append(staged_request(node, gang.name, answers[node.name]))
    newest = max(known, key=lambda request: request.run_id, default=None)
    if newest is None:
        return None
    same = [request for request in known if request.run_id == newest.run_id]
    agreed = {
        address: name
        for address, name in newest.addresses.items()
        if all(request.addresses.get(address) == name for request in same)
    }
    return replace(newest, members=most_say((request.members for request in same), ()), addresses=agreed)


def _ask(fleet: Fleet, gang: GangSpec, run_id: str = "") -> PerNode[StagedAnswer]:
    def ask_node(session: Session) -> StagedAnswer:
        return ask_staged(session, GangRequest(**request_keys(session.spec, gang.name), run_id=run_id or None))

    return fleet.on_every(ask_node, only=[node.name for node in gang.nodes])


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was staged on a node, as this release has it; remarks: what it ignored or could not find, each as text."""

    request: StagingRequest
    remarks: tuple[str, ...] = ()


def staged_request(node: NodeSpec, gang: str, answer: StagedAnswer) -> StagingRequest:
    """`read_staged` without its remarks."""
    return read_staged(node, gang, answer).request


def read_staged(node: NodeSpec, gang: str, answer: StagedAnswer) -> ReadBack:
    """What was last staged on a node, by whatever release, to be staged there again.

    Raises InputError if that is nothing; StagedByNewer where ignoring a key would start something else; NodeError where
    it can't be read.
    """
    raw: object = answer.request
    if not isinstance(raw, Mapping) or not raw or not answer.launch_script:
        raise _nothing(gang, node.name)
    protocol = raw.get("protocol", 0)
    if isinstance(protocol, int) and protocol > PROTOCOL:
        raise StagedByNewer(
            f"PLAN-OTHER-RELEASE: a newer l40s-deploy staged this (its protocol is {protocol}; this release reads up to"
            f" {PROTOCOL}), so it can't be started again without loss",
            where=node.name,
            fix=f"use that release; or run `l40s-deploy down {gang}`, then {start_with_a_model(gang)}",
        )
    request = StagingRequest.read(raw)
    if not isinstance(request, Unreadable) and request.protocol < 0:  # written by no release: the file is damaged
        request = Unreadable("StagingRequest.protocol", f"is {request.protocol}; 0 or more is wanted")
    if isinstance(request, Unreadable):
        raise NodeError(
            f"what was staged there can't be read: {request}",
            where=node.name,
            fix=f"run `l40s-deploy down {gang}`, then {start_with_a_model(gang)}",
        )
    public = node.overrides.env_public
    ours = replace(request, state_dir=node.state_dir, gang=gang, env_public=public, launch_script=answer.launch_script)
    whole = completed(ours, raw)
    return ReadBack(whole.request, (*_ignored(raw), *(f"not known: {words}" for words in whole.unknown)))


_MOST_NAMED = 5


def _ignored(raw: Mapping[str, Any]) -> tuple[str, ...]:
    keys = unknown_keys(StagingRequest, raw)
    if not keys:
        return ()
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (f"ignored, since this release has no such key: {', '.join(keys[:_MOST_NAMED])}{more}",)


def _nothing(gang: str, place: str) -> InputError:
    return InputError(
        f"gang {gang} was never started: no plan is staged on its nodes",
        where=place,
        fix=start_with_a_model(gang),
    )


def _other_nodes(
    gang: GangSpec, name: str, members: Sequence[str], have: Sequence[str], machines: Mapping[str, NodeSpec]
) -> InputError:
    """This node's plan has other members than the inventory's gang, which has these of them.

    machines: all nodes of the inventory, by name
    """
    given = [machines[member] for member in members if machines.get(member, gang.leader).gang != gang.name]
    what = f"of these, the inventory's gang has {', '.join(have)}"
    fix = f"plan for the current gang: {start_with_a_model(gang.name)}"
    if given:
        what = f"this inventory gives {', '.join(f'{node.name} to {node.gang}' for node in given)}"
        names = ", ".join(node.name for node in given)
        fix = put_back(names, gang.name)
    return InputError(
        f"the plan on {name} is for the nodes {', '.join(members)}; {what}", where=f"gang {gang.name}", fix=fix
    )


def _refuse_disagreement(
    gang: GangSpec, requests: Mapping[str, StagingRequest], machines: Mapping[str, NodeSpec]
) -> None:
    names = tuple(requests)
    for name, request in requests.items():
        if request.plan_id != requests[names[0]].plan_id:
            raise InputError(
                f"{name} has another plan ({request.plan_id}) than {names[0]}"
                f" ({requests[names[0]].plan_id}): an `up` was interrupted",
                where=f"gang {gang.name}",
                fix=start_with_a_model(gang.name),
            )
        if request.members != names:
            raise _other_nodes(gang, name, request.members, names, machines)


def _refuse_another_address(gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
    """A plan as the leader has it, whose service is where neither the inventory nor anybody else has it."""
    leader = requests[gang.leader.name]
    claim = leader.service.url if leader.service is not None else ""
    service = service_of(
        gang,
        leader.node,
        claim,
        recorded=recorded_url(gang.name, leader.plan_id),
        witnesses=[request.serves_at for request in requests.values() if request is not leader],
    )
    if service.remark:
        raise InputError(
            service.remark,
            where=f"gang {gang.name}",
            fix=f"plan it anew: {start_with_a_model(gang.name, '--replace')}",
        )


def facts_of_now(fleet: Fleet, say: Callable[[str, str], None]) -> OfNow:
    """What is done to `Staged.requests` at every start: what was staged is started with the facts of now.
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
                say(gang.name, f"{words} on {node.name}")
            resolved[node.name] = request
        return resolved

    return of_now


def resolved_on(node: NodeSpec, request: StagingRequest, known: Mapping[str, Topology]) -> tuple[StagingRequest, str]:
    """The request with what moved on this node, and that in words; ('' and as it was where nothing did, where the
    networks of some node were not read, or where its launch script is not one of ours). known: the gang's nodes as they
    are now, this one among them."""
    here = moved(request, Machine(node, known[node.name]), networks_met(known.values()))
    if here.network == request.network or any(topology.lacks(*NETWORKS) for topology in known.values()):
        return request, ""
    now = moved_variables(request.network, here.network)
    script = exported_anew(request.launch_script, request.env, now)
    if script is None:
        return request, ""
    return (
        replace(
            request,
            network=here.network,
            env={name: value for name, value in {**request.env, **now}.items() if value is not None},
            launch_script=script,
            launch_sha256=launch_digest(script),
        ),
        here.words,
    )
