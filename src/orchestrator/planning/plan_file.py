"""A plan's short names and document, and what another plan would change: of one in a file, and of what is staged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.model.secret_text import HIDDEN, fingerprint, is_secret, shown, shown_env, shown_flags
from orchestrator.protocol.errors import VerificationDiffers
from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.staging import APART, Container, NodePlan, StagingRequest

_MOST_NAMED = 6


_ByNode = Mapping[str, Mapping[str, str]]
"""Values by node, then by name."""


@schema(frozen=True, slots=True, kw_only=True)
class SavedPlan(Message):
    """What a plan's document holds of its facts and of what it would run, by node name; path: the file, for messages.

    settings: environment and flags by name
    """

    path: str
    plan_id: str
    facts: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, Mapping[str, str]]


def saved_plan(path: str, document: Mapping[str, Any]) -> SavedPlan:
    """Read `plan --out`'s document. Raises KeyError, TypeError, ValueError or AttributeError where it is none."""
    facts = _by_node((str(fact["node"]), str(fact["name"]), str(fact["value"])) for fact in document["facts"])
    settings = {str(node["name"]): {**node["env"], **node["words"]} for node in document["nodes"]}
    return SavedPlan(path=path, plan_id=str(document["plan_id"]), facts=facts, settings=settings)


def refuse_changes(saved: SavedPlan, plan: Plan) -> None:
    """Raises VerificationDiffers where the plan of today is another: which facts changed, on which node, from what
    to what; or, where none did, which settings the inventory, a profile, the stack or this program changed."""
    changed = list(_differences(saved.facts, _by_node(plan.facts)))
    kind = "facts have changed since"
    if not changed:
        if plan.plan_id == saved.plan_id:
            return
        kind = "the facts are the same, but the inventory, profile, stack or l40s-deploy has changed since"
        changed = list(_differences(saved.settings, _settings(plan)))
        changed = changed or [f"it was plan {saved.plan_id} and is now {plan.plan_id}"]
    more = f"; and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    raise VerificationDiffers(
        f"{kind}: {'; '.join(changed[:_MOST_NAMED])}{more}",
        where=saved.path,
        fix="review a new plan, and save it with `plan --out`",
    )


def _by_node(facts: Iterable[tuple[str, str, str]]) -> _ByNode:
    return {
        node: dict(pairs) for node, pairs in collected((node, (name, value)) for node, name, value in facts).items()
    }


def _settings(plan: Plan) -> _ByNode:
    nodes = (node for gang in shown(plan).gangs for node in gang.nodes)
    return {node.name: {**dict(node.env), **words_of(node.command, node.flags)} for node in nodes}


def _differences(then: _ByNode, now: _ByNode) -> Iterator[str]:
    for node, name in _differing(then, now):
        was, will = (_word(side.get(node, {}).get(name)) for side in (then, now))
        yield f"{node}: {name} was {was}, is now {will}"


def _differing(then: _ByNode, now: _ByNode) -> Iterator[tuple[str, str]]:
    """Node and name of each value that one side has otherwise, or not at all."""
    for node in dict.fromkeys((*then, *now)):
        was, will = then.get(node, {}), now.get(node, {})
        yield from ((node, name) for name in dict.fromkeys((*was, *will)) if was.get(name) != will.get(name))


def _word(value: str | None) -> str:
    return "not there" if value is None else value or "empty"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The document of `plan --json`, without secrets. `layout` and `memory` at the top are the first gang's."""
    plan = shown(plan)
    first = plan.gangs[0] if plan.gangs else None
    return {
        "plan_id": plan.plan_id,
        "facts_digest": plan.facts_digest,
        "layout": asdict(first.layout) if first else None,
        "memory": asdict(first.memory) if first else None,
        "gangs": [_gang(gang) for gang in plan.gangs],
        "nodes": [_node(node) for gang in plan.gangs for node in gang.nodes],
        "findings": [finding.as_json() for finding in plan.findings],
        "facts": [{"node": node, "name": name, "value": value} for node, name, value in plan.facts],
    }


def _gang(gang: GangPlan) -> dict[str, Any]:
    """What its nodes have alike once."""
    leader = gang.leader
    return {
        "name": gang.name,
        "model": gang.model,
        "stack": gang.stack,
        "dialect": gang.dialect,
        "engine_version": gang.engine_version,
        "layout": asdict(gang.layout),
        "memory": asdict(gang.memory),
        "start": asdict(gang.start) if gang.start else None,
        "dist_init": gang.dist_init,
        "service_url": gang.service_url,
        "agent_address": leader.leader.address,
        "agent_port": leader.leader.port,
        "http_port": gang.http_port,
        "lease_s": leader.lease_s,
        "model_bytes": gang.model_bytes,
        "canary": asdict(leader.canary) if leader.canary else None,
        "nodes": [node.name for node in gang.nodes],
        "device": leader.device,
        "nccl_port": gang.nccl_port,
        "api_key": leader.api_key or "",
    }


def _node(node: NodePlan) -> dict[str, Any]:
    return {
        "gang": node.gang,
        "name": node.name,
        "node_rank": node.node_rank,
        "address": node.network.address,
        "argv": list(node.argv),
        "words": words_of(node.command, node.flags),
        "env": dict(node.env),
        "sources": dict(node.sources),
        "gpus": list(node.gpus),
        "tp_ranks": list(node.tp_ranks),
        "working_dir": node.working_dir,
        "model_path": node.model_path,
        "http_url": node.http_url,
        "network": node.network.as_json(),
        **({"container": _container(node, node.container)} if node.container else {}),
    }


def _container(node: NodePlan, container: Container) -> dict[str, Any]:
    seen = {"gpus": list(node.gpus), "rdma": node.network.rdma, "shown": [list(mount) for mount in node.mounts]}
    return {**asdict(container), **seen}


_LENGTH = 12
"""Hexadecimal digits: enough to tell one operator's plans apart."""


def facts_digest(facts: Iterable[tuple[str, str, str]]) -> str:
    """The same facts give the same digest, whatever their order."""
    return short_digest(sorted(facts))


def plan_id(plan: Plan) -> str:
    """The same engines on the same nodes give the same id, whatever the words about them; of a secret only so much
    goes into it as tells it from another."""
    return short_digest([_gang_content(gang) for gang in plan.gangs])


def _gang_content(gang: GangPlan) -> dict[str, Any]:
    content = _gang(gang)
    for name in ("memory", "start", "engine_version", "device", "nccl_port"):  # the last two are in the flags
        del content[name]
    if gang.layout.attention_data_parallel == 1:  # so that a plan without it keeps the id that earlier releases gave it
        del content["layout"]["attention_data_parallel"]
    content["nodes"] = [_node_content(node) for node in gang.nodes]
    return content


def _node_content(node: NodePlan) -> dict[str, Any]:
    content = _node(node)
    for name in ("words", "sources", "network"):  # no part of what runs, or in env and argv
        del content[name]
    content["env"] = [
        (name, fingerprint(value) if is_secret(name, value) else value) for name, value in node.env.items()
    ]
    return content


def short_digest(value: Any) -> str:
    """Of anything that JSON can hold, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=dict, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_LENGTH]


_WORD_BY_WORD = ("argv", "command", "flags", "env")
_OF_WATCHING = ("watch", "network", "layout", "graph_batch", "request_limit", "runs_at_once")
_SAID_ELSEWHERE = (*_OF_WATCHING, "http_url", "served", "sources", "env_public")
_OF_ONE_RUN = {"protocol", "run_id", "plan_id", "asked", *APART, "launch_sha256", "state_dir", "gang"}
_NOT_COMPARED = {*_OF_ONE_RUN, *_WORD_BY_WORD, *_SAID_ELSEWHERE}
"""Keys that differ from run to run without any meaning, those that are compared word by word, and those that follow
from others or start nothing."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs; None where it is missing. Secrets are shown as such."""

    node: str
    name: str
    was: str | None
    will: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangDiff:
    """What `up` would change on one gang.

    running: plan id of what was staged last, '' where nothing was; state: the gang's, as status says it
    left: nodes of the running plan that the inventory has no more
    """

    name: str
    state: str
    running: str
    changes: tuple[SettingChange, ...]
    left: tuple[str, ...] = ()

    @property
    def restart(self) -> bool:
        """An engine reads all of this once, when it starts."""
        return bool(self.changes or self.left)

    @property
    def differs(self) -> bool:
        """Whether `up` would start it, or start it otherwise."""
        return self.restart or not self.running


def words_of(command: Sequence[str], flags: Iterable[Sequence[str]]) -> dict[str, str]:
    """Flags with their values as one text, and the command before them."""
    return {"command": " ".join(command), **{flag: " ".join(values) for flag, *values in flags}}


def changes(
    was: Mapping[str, StagingRequest],
    will: Mapping[str, StagingRequest],
    public: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[SettingChange, ...]:
    """Between the requests that were staged and those that would be, by node name; so is public: variables that may
    be shown beside those that are documented."""
    then, now = ({node: _staged_settings(part) for node, part in parts.items()} for parts in (was, will))
    before, after = (
        {node: _staged_settings(part, public.get(node, ())) for node, part in parts.items()} for parts in (was, will)
    )
    return tuple(
        SettingChange(node, name, before.get(node, {}).get(name), after.get(node, {}).get(name))
        for node, name in _differing(then, now)
        if name != "engine_user" or name in now.get(node, {})  # the node knows who called sudo
    )


def by_change(changes: Sequence[SettingChange]) -> dict[tuple[str, str | None, str | None], str]:
    """Each change once as (name, was, will), with the nodes concerned, as text."""
    groups = collected(((change.name, change.was, change.will), change.node) for change in changes)
    return {change: ", ".join(nodes) for change, nodes in groups.items()}


def side(value: str | None) -> str:
    """One side of a change as text."""
    return "not there" if value is None else value or "set"


def summary(changes: Sequence[SettingChange]) -> str:
    """The first changes in one sentence, and how many more there are."""
    parts = [f"{nodes}: {name}: {side(was)} -> {side(will)}" for (name, was, will), nodes in by_change(changes).items()]
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")


def _staged_settings(request: StagingRequest, public: Collection[str] | None = None) -> dict[str, str]:
    """All settings of a node, by the name that users know. public: None for the values as they are"""
    env, flags = request.env, request.flags
    if public is not None:
        env, flags = shown_env(env, public), shown_flags(flags)
    settings = {**env, **words_of(request.command, flags)}
    for key, value in request.as_json().items():
        if key not in _NOT_COMPARED and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            settings[key] = HIDDEN if public is not None and is_secret(key, text) else text
    return settings
