"""`lab break` and `lab heal`: give a running node a fault, and remove it again without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from l40s_lab.breaking import state as fault_state
from l40s_lab.breaking.state import Broken, NodeState
from l40s_lab.faults.registry import Fault, find
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.home import held
from l40s_lab.node import reveal
from l40s_lab.node.living import LivingNode, find_node
from orchestrator.protocol.errors import InputError, NodeError

P = ParamSpec("P")
T = TypeVar("T")


def break_node(name: str, node: str, fault: str, words: Sequence[str]) -> str:
    """Break a node of the lab `name`; returns a sentence on what was done. Raises DeployError."""
    known = find(fault)
    if known.cures:
        words_left = " ".join(words)
        if words_left:
            raise InputError(f"found {words_left}, wanted nothing", where="ARG", fix=f"lab break {node} {fault}")
        return f"{node}: {', '.join(heal_node(name, node, known.cures))} healed"
    with held():
        living = find_node(name, node)
        known.refuse_more(tuple(words))
        _refuse(known, living, tuple(words))
        states = fault_state.read(living.place.path)
        state = states.get(node, NodeState())
        broken = Broken(fault=known.name, words=tuple(words))
        if any((one.fault, one.words) == (broken.fault, broken.words) for one in state.broken):
            raise InputError(f"{node} has this fault already", where=str(broken), fix=f"lab heal {node} {fault}")
        states[node] = _strike(living, state, known, broken)
        fault_state.write(living.place.path, states)
    return f"{node} {broken}: {known.done(broken.words)}"


def heal_node(name: str, node: str, fault: str | None) -> tuple[str, ...]:
    """Remove a fault, or all faults, from a node; returns those removed. Raises DeployError."""
    with held():
        living = find_node(name, node)
        states = fault_state.read(living.place.path)
        state = states.get(node, NodeState())
        going = [one for one in state.broken if fault in (None, one.fault)]
        if fault is not None and not going:
            find(fault)
            has = ", ".join(map(str, state.broken)) or "none"
            raise InputError(
                f"{node} has no fault {fault!r}; it has: {has}", where="FAULT", fix="l40s-deploy lab status"
            )
        for one in reversed(going):
            if one not in state.broken:
                continue  # a restart of the node has ended it
            state = _heal(living, state, one)
            states[node] = state
            fault_state.write(living.place.path, states)
    return tuple(map(str, going))


def _refuse(known: Fault, living: LivingNode, words: tuple[str, ...]) -> None:
    """Raise InputError for a fault that this lab can't have. With real hardware, only the emulated cables can be
    broken."""
    level = living.blueprint.level
    if level not in known.levels:
        why = ": its nodes share this machine's network, files, clock and SSH" if level == 0 else ""
        what, fix = f"{known.name} is not possible at level {level}{why}", "run `l40s-deploy lab up --level 1` as root"
    elif known.change is None:
        return
    elif living.machine.recording is not None:
        what = f"{known.name} changes a machine's description, which recorded machines do not have"
        fix = "run `l40s-deploy lab up`, without --from"
    elif living.blueprint.devices and not _in_cables(known.change(living.machine, words), living.machine):
        what = f"{known.name} changes emulated hardware, but this lab's hardware is real"
        fix = "run `l40s-deploy lab up`, without --gpus host"
    else:
        return
    raise InputError(what, where=f"lab {living.blueprint.name}", fix=fix)


def _in_cables(broken: NodeMachine, whole: NodeMachine) -> bool:
    return replace(broken, interfaces=whole.interfaces) == whole


def _strike(living: LivingNode, state: NodeState, known: Fault, broken: Broken) -> NodeState:
    after = replace(state, broken=(*state.broken, broken))
    if known.change is not None:
        after = _show(living, state, after)
    undo = _told(living, known.strike, broken.words) if known.strike is not None else {}
    if not known.lasting:
        return state
    return replace(after, broken=(*state.broken, replace(broken, undo=undo)))


def _heal(living: LivingNode, state: NodeState, one: Broken) -> NodeState:
    known = find(one.fault)
    after = state.without(one)
    if known.heal is not None:
        _told(living, known.heal, one.undo)
    if known.rebuilds:
        return _after_reboot(living, after)
    return _show(living, state, after) if known.change is not None else after


def _after_reboot(living: LivingNode, state: NodeState) -> NodeState:
    """A restarted node keeps its hardware faults; all others are over, including those of its cable."""
    for one in state.broken:
        known = find(one.fault)
        if known.outside and known.heal is not None:
            _told(living, known.heal, one.undo)
    kept = NodeState(broken=tuple(one for one in state.broken if find(one.fault).change is not None))
    return _show(living, NodeState(), kept)


def _show(living: LivingNode, before: NodeState, after: NodeState) -> NodeState:
    old, new = broken_machine(living.machine, before.broken), broken_machine(living.machine, after.broken)
    return replace(after, covers=_told(living, reveal.show, old, new, before.covers))


def broken_machine(machine: NodeMachine, broken: Iterable[Broken]) -> NodeMachine:
    """The machine with its hardware faults, applied in the order in which they were added."""
    for one in broken:
        change = find(one.fault).change
        machine = change(machine, one.words) if change else machine
    return machine


def _told(living: LivingNode, work: Callable[Concatenate[LivingNode, P], T], *words: P.args, **more: P.kwargs) -> T:
    """Turn an error from the kernel into an error message."""
    try:
        return work(living, *words, **more)
    except OSError as failure:
        raise NodeError(
            f"that is not possible: {failure}",
            where=living.name,
            fix="run `l40s-deploy lab down`, then `l40s-deploy lab up`",
        ) from failure
