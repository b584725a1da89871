"""What a plan is made of: a snapshot of each node, with what is installed there of its stack."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from orchestrator.engines.engine import moe_root
from orchestrator.engines.registry import dialects
from orchestrator.loading.profiles import load_stack, reported_stack
from orchestrator.model import packages
from orchestrator.model.deadlines import LOOK_S, NVML_S
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Stack
from orchestrator.model.snapshot import Snapshot, snapshot_from_json
from orchestrator.planning.host import venv
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.protocol.looks import ProbeRequest, StackQuestion, TunedFolders
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session


def look(fleet: Fleet, nodes: Iterable[NodeSpec], stack: Stack | None = None) -> PerNode[Snapshot]:
    """A snapshot of each node, with what is installed there of its stack.

    stack: None for the one that the inventory names for the node; where it names none, only l40s_venv is looked at
    Its host facts have two more than the node gave: `clock_offset_s`, the node's clock less ours, and
    `round_trip_s`, twice the most that the offset can be wrong by.
    """
    return fleet.on_every(lambda session: _look_at(session, stack), only={node.name for node in nodes})


def _look_at(session: Session, stack: Stack | None) -> Snapshot:
    spec = session.spec
    request = ProbeRequest(
        node=spec.name,
        fs_root=spec.fs_root,
        nvml_deadline_s=NVML_S,
        state_dir=spec.state_dir,
        model_root=spec.model_root,
        engine_user=spec.engine_user or "",
        stack=_about_the_stack(spec, stack or named_stack(spec.stack)),
    )
    sent = time.time()
    answer = node_app.call(session, "probe", request, deadline_s=LOOK_S)
    received = time.time()
    try:
        snapshot = snapshot_from_json(answer)
    except ValueError as wrong:
        raise NodeError(
            f"the probe's answer is not a snapshot: {wrong}",
            where=spec.name,
            fix="report this bug, with the files of `l40s-deploy discover --save snapshots`",
        ) from None
    return replace(snapshot, node=spec.name, host=_with_clock_offset(snapshot, sent, received))


def named_stack(name: object) -> Stack | None:
    """The stack of this name; None if there is none; callers that need it report that."""
    if not isinstance(name, str) or not name:
        return None
    try:
        return load_stack(name)
    except InputError:
        return None


def known_stack(name: str) -> Stack | None:
    """The stack of a name that a node reports; None if it is not known here."""
    try:
        return reported_stack(name)
    except InputError:
        return None


def _about_the_stack(spec: NodeSpec, stack: Stack | None) -> StackQuestion | None:
    if stack is None:
        return StackQuestion(venv=spec.venv, packages=packages.ALL) if spec.venv else None
    question = StackQuestion(
        venv=venv(spec, stack.name), name=stack.name, packages=packages.ALL, evidence=dict(stack.evidence)
    )
    family = dialects().get(stack.dialect)
    if family is not None and stack.device == "cuda":
        rules = family.engine(stack.engine_version).tuned
        directory = {**dict(stack.env), **dict(spec.overrides.env)}.get(rules.variable, "") if rules.variable else ""
        folders = TunedFolders(moe=moe_root(rules, directory), by_triton=rules.by_triton, linear=rules.linear)
        return replace(question, tuned=folders)
    return question


def _with_clock_offset(snapshot: Snapshot, sent: float, received: float) -> dict[str, object]:
    """The probe reads the clock last, so half of the remaining round trip is behind it."""
    host = dict(snapshot.host)
    clock, spent = host.get("clock"), host.get("probe_seconds")
    if isinstance(clock, (int, float)):
        inside = spent.get("all") if isinstance(spent, dict) else None
        way = max(0.0, received - sent - (inside if isinstance(inside, (int, float)) else 0.0))
        host["clock_offset_s"] = round(clock - (received - way / 2), 4)
        host["round_trip_s"] = round(way, 4)
    return host
