"""`plan`: look at the nodes, build their topologies, compute what would run. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.engines.registry import dialect, dialects
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.loading.resources import template
from orchestrator.loading.secret_file import read_api_key
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import PREREQUISITES_S
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.model.plan import Plan
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.secret_text import fingerprint
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gpu, Topology
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.dimensions import check_checkpoint
from orchestrator.planning.host import HostFacts, model_path, venv
from orchestrator.planning.layout import refusal
from orchestrator.planning.needs import with_seen
from orchestrator.planning.plan_file import SavedPlan, plan_json, refuse_changes, saved_plan
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest
from orchestrator.protocol.message import Unreadable, parsed, schema
from orchestrator.protocol.staging import Asked
from orchestrator.records.documents import least_free, write_whole
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.rendering import launch_script, launch_template
from orchestrator.topology.build import build


@schema(frozen=True, slots=True, kw_only=True)
class PlanRequest(Asked):
    """What an operator asks for, and of which gangs. saved: take no other plan.

    replicas: one gang a node; whoever makes the plan is given an inventory that is split so
    without: names of nodes that are left out, of an inventory that no longer has them (model.survivors); where no spare
        takes their places, the layout is then one that fits those that are left
    """

    replicas: bool = False
    gangs: tuple[str, ...] = ()
    saved: SavedPlan | None = None
    without: tuple[str, ...] = ()

    @staticmethod
    def of(asked: Asked, *, gangs: tuple[str, ...], without: tuple[str, ...] = ()) -> PlanRequest:
        """The same again, of these gangs."""
        return PlanRequest(**_asked(asked), gangs=gangs, without=without)

    @property
    def asked(self) -> Asked:
        """What is asked of each gang: what its nodes keep."""
        return Asked(**_asked(self))


def _asked(request: Asked) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Asked.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A plan with what it was made from, by node name. why: this stack, '' where somebody named it."""

    plan: Plan
    profile: ModelProfile
    stack: Stack
    why: str = ""
    topologies: Mapping[str, Topology]
    snapshots: Mapping[str, Snapshot]


def make_plan(inventory: Inventory, request: PlanRequest, fleet: Fleet) -> PlanResult:
    """Look at the nodes of the gangs that were asked for, and plan them.

    Raises InputError and FindingsError (see planning.build), VerificationDiffers where a saved plan no longer
    holds, and the failure of the first node that can't be read.
    """
    gangs = chosen_gangs(inventory, request.gangs)
    profile = load_profile(request.model)
    choice = chosen_stack(gangs, profile, request.stack)
    stack = load_stack(choice.name)
    nodes = [node for gang in gangs for node in gang.nodes]
    prerequisites_later = ahead(lambda: prerequisites(fleet, nodes, profile, stack))
    snapshots = look(fleet, nodes, stack).all()
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    seen = chosen_stack(gangs, profile, request.stack, _gpus_of(topologies.values()))
    if seen.name != choice.name:  # an L40S was assumed
        return replace(make_plan(inventory, replace(request, stack=seen.name), fleet), why=seen.why)
    return _planned(gangs, request, seen, snapshots, facts_of_hosts(snapshots, prerequisites_later.result()))


def plan_recorded(inventory: Inventory, request: PlanRequest, snapshots: Mapping[str, Snapshot]) -> PlanResult:
    """The plan of recorded nodes. What no recording holds, an engine or a checkpoint, is not judged."""
    gangs = chosen_gangs(inventory, request.gangs)
    gpus = _gpus_of(map(build, snapshots.values()))
    seen = chosen_stack(gangs, load_profile(request.model), request.stack, gpus)
    return _planned(gangs, request, seen, snapshots, facts_of_hosts(snapshots, {}))


def _gpus_of(topologies: Iterable[Topology]) -> list[Gpu]:
    return [gpu for topology in topologies for gpu in topology.gpus]


def _planned(
    gangs: tuple[GangSpec, ...],
    request: PlanRequest,
    choice: StackChoice,
    snapshots: Mapping[str, Snapshot],
    hosts: Mapping[str, HostFacts],
) -> PlanResult:
    profile, stack = load_profile(request.model), load_stack(choice.name)
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    for node in (node for gang in gangs for node in gang.nodes):
        if (config := hosts[node.name].config) is not None:
            check_checkpoint(node, profile, config, map(load_profile, profile_names()))
    keys = {gang.name: fingerprint(key) for gang in gangs if (key := api_key(gang))}
    known = PlanFacts(topologies=topologies, hosts=hosts, api_keys=keys)
    plan = _with_seen(build_plan(gangs, profile, stack, request, known))
    if request.saved is not None:
        refuse_changes(request.saved, plan)
    return PlanResult(
        plan=plan, profile=profile, stack=stack, why=choice.why, topologies=topologies, snapshots=snapshots
    )


def _with_seen(plan: Plan) -> Plan:
    """With what runs of the same plan have left free of the GPUs' memory."""
    seen = ((gang, least_free(gang.name, plan.plan_id)) for gang in plan.gangs)
    return replace(plan, gangs=tuple(replace(gang, memory=with_seen(gang.memory, free)) for gang, free in seen))


@dataclass(frozen=True, slots=True)
class StackChoice:
    """A stack's name, and why it was taken: '' where somebody named it."""

    name: str
    why: str = ""


def chosen_stack(
    gangs: tuple[GangSpec, ...], profile: ModelProfile, asked: str | None, gpus: Iterable[Gpu] = ()
) -> StackChoice:
    """The stack: what was asked for, else the inventory's, else the first whose engine can serve the model on these
    GPUs (an L40S where none is known): of the dialects that the profile was tried with, then of the others, the default
    engine's newest first. Where none can, the first, whose reason the plan then gives."""
    if asked:
        return StackChoice(asked)
    named = {node.stack for gang in gangs for node in gang.nodes}
    if len(named) > 1:
        raise InputError(
            "the nodes use different stacks: " + ", ".join(sorted(str(name or "none") for name in named)),
            where="inventory: l40s_stack",
            fix="set the same l40s_stack for these gangs, or choose with --stack or --gang",
        )
    if stack := next(iter(named), None):
        return StackChoice(stack)
    return _first_able(who_can(profile, gpus), profile)


def _first_able(able: Sequence[tuple[str, str]], profile: ModelProfile) -> StackChoice:
    """able: as of `who_can`"""
    first = next((place for place, (_, reason) in enumerate(able) if not reason), None)
    if first is None:
        return StackChoice(able[0][0], f"no engine here can serve {profile.name}")
    passed = "".join(f"; {name} can't: {reason}" for name, reason in able[:first])
    tried = "it was tried with this model" if profile.tried and not first else "the first whose engine can serve it"
    return StackChoice(able[first][0], tried + passed)


def who_can(profile: ModelProfile, gpus: Iterable[Gpu] = ()) -> tuple[tuple[str, str], ...]:
    """Every dialect's own stack in the order of preference, and why its engine can't serve the model on these GPUs:
    '' where it can."""
    gpus = tuple(gpus)
    tried = (dialect(name).stack for name in profile.tried)
    names = dict.fromkeys((*tried, *(other.stack for other in reversed(list(dialects().values())))))
    refusals = ((name, refusal(profile, load_stack(name), gpus)) for name in names)
    return tuple((name, against.reason if against else "") for name, against in refusals)


def api_key(gang: GangSpec) -> str:
    """What the gang's service asks of its clients, '' for nothing. Raises InputError for a file that is no key's."""
    if (file := gang.leader.api_key_file) is None:
        return ""
    return read_api_key(Path(file).expanduser(), where=f"inventory: {gang.leader.name}: l40s_api_key_file")


def prerequisites(
    fleet: Fleet, nodes: Iterable[NodeSpec], profile: ModelProfile, stack: Stack
) -> Mapping[str, PrerequisitesAnswer]:
    """What the engine will find on each node beside the hardware; a node that can't say is left out."""

    def ask_node(session: Session) -> PrerequisitesAnswer:
        spec = session.spec
        request = PrerequisitesRequest(model_path=model_path(spec, profile), venv=venv(spec, stack.name))
        return ask(session, "prerequisites", request, PrerequisitesAnswer, deadline_s=PREREQUISITES_S)

    return fleet.on_every(ask_node, only={node.name for node in nodes}).values


def facts_of_hosts(
    snapshots: Mapping[str, Snapshot], answers: Mapping[str, PrerequisitesAnswer]
) -> dict[str, HostFacts]:
    """What a plan needs to know of each node beside its hardware, taken with care: it comes from outside."""
    return {
        name: host_facts(snapshot, answers.get(name, PrerequisitesAnswer())) for name, snapshot in snapshots.items()
    }


def host_facts(snapshot: Snapshot, answer: PrerequisitesAnswer) -> HostFacts:
    """From the probe and the verb `prerequisites`; what is missing or misshapen counts as not read."""
    host = snapshot.host
    user, home, count = (host.get(name) for name in ("user", "home", "cpu_count"))
    config, wrong = config_of(answer)
    return HostFacts(
        user=user if isinstance(user, str) and user else None,
        home=home if isinstance(home, str) and home.startswith("/") else None,
        cpu_count=count if isinstance(count, int) and count > 0 else None,
        glibc=answer.glibc or None,
        engine=answer.engine,
        engine_python=answer.engine_python or None,
        vocabularies=answer.vocabularies,
        config=config,
        config_error=wrong,
    )


def config_of(answer: PrerequisitesAnswer) -> tuple[Mapping[str, Any] | None, str]:
    """A checkpoint's config.json, or None and why it could not be read."""
    if answer.config is None:
        return None, answer.config_error
    config = parsed(answer.config)
    if isinstance(config, Unreadable):
        return None, "it is not JSON"
    return (config, "") if isinstance(config, dict) else (None, "it is not a JSON object")


def launch_scripts(plan: Plan) -> dict[str, str]:
    """The launch script of every node, by node name: what the agent starts, and what a human can read and run."""
    return {
        node.name: launch_script(node, gang, plan.plan_id, template(launch_template(node)))
        for gang in plan.gangs
        for node in gang.nodes
    }


FORMAT = 1


def write_plan(path: Path, plan: Plan, request: PlanRequest) -> None:
    """Write the plan's document with the request that it came from. Raises InputError where it can't be written."""
    document = {"format": FORMAT, **plan_json(plan), "request": replace(request, saved=None).as_json()}
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def read_request(path: Path) -> PlanRequest:
    """The request of a plan file, which refuses any other plan than the file's. Raises InputError."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise _wrong(path, f"found format {document['format']!r:.40}, wanted {FORMAT}")
        request, saved = PlanRequest.read(document["request"]), saved_plan(str(path), document)
    except OSError as failure:
        raise InputError(
            f"this file can't be read: {failure.strerror or failure}",
            where=str(path),
            fix="specify a file from `plan --out`",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise _wrong(path, f"this is not a plan: {wrong!r:.100}") from None
    if isinstance(request, Unreadable):
        raise _wrong(path, f"this is not a plan: {request}")
    return replace(request, saved=saved)


def _wrong(path: Path, what: str) -> InputError:
    return InputError(what, where=str(path), fix="write it with `plan --out`")
