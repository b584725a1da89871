"""What a guard does about a gang, given its state and what was done before. Pure: tested by a table of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from orchestrator.gang.operations import GangOperation
from orchestrator.gang.remarks import sentence
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState

DAY_S = 86400.0
AGAIN = 2
"""Restarts for one class of hang within a day, after which somebody has to know."""
_WAITING = (NodeState.STAGED, NodeState.ARMED)


class GuardAction(str, Enum):
    """NOTHING. WARN: tell the operator, do nothing else. WAIT: a restart is due, but not yet. RESTART. GIVE_UP: tell
    the operator, and stop. DEGRADE: start without the nodes that stay away, on spares or on fewer nodes. REPLAN: its
    plan can't be carried out any more; start it with a new one. RETURN: missing nodes or rails may be back; check
    whether the gang can run as before."""

    NOTHING = "nothing"
    WARN = "warn"
    WAIT = "wait"
    RESTART = "restart"
    GIVE_UP = "give-up"
    DEGRADE = "degrade"
    REPLAN = "replan"
    RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """limit: restarts in a row before it gives up. The pause before the next one doubles from first_pause_s up to
    most_pause_s, in seconds. stable_s: a gang that was ready for this long starts counting restarts anew. left_s: a run
    staged this long ago and not started since was abandoned (a command at work would hold the gang's lock).

    A finding that forbids a start holds the restart back and is checked again: the pause doubles from first_pause_s up
    to most_look_s. tell_at: number of checks in a row after which the operator is told; some findings pass by
    themselves.

    degrade_after_s: a failed gang continues without a node that was away for this long; None: it waits for the node.

    replan_after_s: a gang whose plan needs RDMA gets a new plan if a node has had no usable port for this long (links
    train after a boot). If degrade_after_s is shorter, it applies instead.

    return_limit, most_return_pause_s: returns to all nodes in a row before the guard leaves the next one to an
    operator, and the longest wait before one. The wait doubles from degrade_after_s (at least first_pause_s), so that a
    node that comes and goes restarts the gang less and less often. The count is reset once the gang has served on all
    nodes for stable_s.
    """

    limit: int = 5
    first_pause_s: float = 10.0
    most_pause_s: float = 600.0
    most_look_s: float = 120.0
    tell_at: int = 3
    stable_s: float = 900.0
    left_s: float = 60.0
    degrade_after_s: float | None = None
    replan_after_s: float = 120.0
    return_limit: int = 3
    most_return_pause_s: float = 3600.0

    @property
    def waits_for_rails_s(self) -> float:
        """How long to wait for a node without any usable RDMA port."""
        return min(self.replan_after_s, self.replan_after_s if self.degrade_after_s is None else self.degrade_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardMemory:
    """What a guard remembers of one gang. Times are the guard's own clock in seconds.

    restarts:    in a row, since the gang was last stable
    held_back:   checks in a row at which a finding forbade the restart
    against:     that finding, as text
    not_before:  no restart before this time
    ready_since: None while it is not ready
    given_up:    left to the operator; reset once the gang is ready again
    barred:      nodes and spares that had a finding of severity stop, or did not answer the doctor, when a start was
                 last considered
    lost:        since when each node has not answered, by its name, whatever the gang and the guard did meanwhile
    away_since:  since when some node that a due restart needs is away (does not answer, or is barred); None if none is
    hopeless:    nodes without which the gang was found unable to run: no layout fits the others
    on_fewer_at: no start without the nodes that are away before this time
    unfit:       spares with which a start has failed
    outdated_since: since when its plan is known to need what its nodes don't have; None if it does not
    replanned:   id of the plan that does without that, once the gang was started with it
    return_at:   no check whether it can run on all nodes again before this time; looks: such checks in a row
    ports:       the active RDMA ports at the last such check; None before the first. After a boot or a switch restart
                 they come back one by one: a return waits until two checks in a row have found the same
    returned:    attempted returns to all nodes, since the gang was last stable on all of them
    hangs:       (class, time) of each restart for a hang within the last day
    """

    restarts: int = 0
    held_back: int = 0
    against: str = ""
    not_before: float = 0.0
    ready_since: float | None = None
    given_up: bool = False
    barred: tuple[str, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    away_since: float | None = None
    hopeless: tuple[str, ...] = ()
    on_fewer_at: float = 0.0
    unfit: tuple[str, ...] = ()
    outdated_since: float | None = None
    replanned: str = ""
    return_at: float = 0.0
    looks: int = 0
    ports: tuple[str, ...] | None = None
    returned: int = 0
    hangs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """What to do, and why, as text for the audit log and the hooks. without: nodes that a DEGRADE or a REPLAN leaves
    out; counting: what happens after a pause, and when, which changes from look to look."""

    do: GuardAction
    reason: str = ""
    without: tuple[str, ...] = ()
    counting: str = ""

    @property
    def why(self) -> str:
        """All of it."""
        return "; ".join(filter(None, (self.reason, self.counting)))


def decide(
    view: GangView, memory: GuardMemory, now: float, policy: Policy, begun: GangOperation | None = None
) -> tuple[GuardDecision, GuardMemory]:
    """The decision, and what to remember from now on.

    A gang that an operator has stopped is not started. A gang that a command starts or stops is left to that command,
    unless the command abandoned it between staging and start, or was killed in this gang's turn (begun).
    """
    remembered = noted(_remember(view, memory, now, policy), view, now)
    reason = _reason(view, policy) or _left_half_way(view, begun)
    if not reason:
        return _at_peace(view, remembered, now), replace(remembered, away_since=None, barred=(), outdated_since=None)
    remembered = _with_absences(view, remembered, now)
    if view.gathering and view.trouble == "hung":
        return GuardDecision(
            GuardAction.WAIT, f"{reason}; its ranks are looked at first, which takes seconds"
        ), remembered
    if remembered.given_up:
        return GuardDecision(GuardAction.NOTHING, "the guard has given up; an operator must act"), remembered
    if remembered.restarts >= policy.limit:
        why = f"{reason}; {remembered.restarts} restarts in a row did not help"
        return GuardDecision(GuardAction.GIVE_UP, why), replace(remembered, given_up=True)
    return _when(view, remembered, now, reason, policy), remembered


def _unusable(view: GangView, memory: GuardMemory) -> tuple[str, ...]:
    """Nodes that no start can use now, in order, except nodes that the current run was started without and that are
    back."""
    return tuple(node.name for node in view.nodes if node.error is not None or node.name in memory.barred)


def _away(view: GangView, memory: GuardMemory) -> tuple[str, ...]:
    """Those of these nodes that the gang needs."""
    return tuple(name for name in _unusable(view, memory) if name not in view.missing)


def _left_out(view: GangView, memory: GuardMemory) -> tuple[str, ...]:
    """What a start without the nodes that are away leaves out: those nodes, and spares that can't take a place."""
    unfit = {*memory.unfit, *memory.barred, *(node.name for node in view.spares if node.error is not None)}
    return (*_unusable(view, memory), *(node.name for node in view.spares if node.name in unfit))


def _with_absences(view: GangView, memory: GuardMemory, now: float) -> GuardMemory:
    if view.unreachable and now >= memory.not_before:
        memory = replace(memory, barred=())  # while it waits for another node, the doctor checks these again
    if not (away := _away(view, memory)):
        return replace(memory, away_since=None, hopeless=())
    since = min(memory.lost.get(name, now) for name in away)
    return replace(memory, away_since=since if memory.away_since is None else memory.away_since)


def noted(memory: GuardMemory, view: GangView, now: float) -> GuardMemory:
    """After a look, also one in the middle of a restart: which nodes answer and which don't."""
    nodes = (*view.nodes, *view.spares)
    lost = {**dict.fromkeys((node.name for node in nodes if node.error is not None), now), **memory.lost}
    back = {node.name for node in nodes if node.error is None}
    return replace(memory, lost={name: since for name, since in lost.items() if name not in back})


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(most_s, first_s * 2.0 ** min(times, 32))


def restarted(memory: GuardMemory, now: float, policy: Policy) -> GuardMemory:
    """After an attempted restart, whatever its result."""
    return replace(
        memory,
        restarts=memory.restarts + 1,
        held_back=0,
        against="",
        barred=(),
        not_before=now + _doubled(policy.first_pause_s, memory.restarts, policy.most_pause_s),
        on_fewer_at=0.0,
        outdated_since=None,
        ready_since=None,
    )


def held_back(
    memory: GuardMemory,
    now: float,
    policy: Policy,
    against: str,
    barred: tuple[str, ...] = (),
    *,
    outdated: bool = False,
    on_fewer: bool = False,
) -> GuardMemory:
    """After a finding forbade a restart: it does not count as one, and the next check follows after a pause.

    outdated: it is that the gang's plan can't be carried out any more; like any finding, that may pass. on_fewer: it
    forbade a start without the nodes that are away; if it names further nodes, the next start leaves these out too, and
    follows at once.
    """
    pause = _doubled(policy.first_pause_s, memory.held_back, policy.most_look_s)
    known = tuple(dict.fromkeys((*memory.barred, *barred))) if on_fewer else barred
    on_fewer_at = now if known != memory.barred else now + pause
    since = now if memory.outdated_since is None else memory.outdated_since
    return replace(
        memory,
        held_back=memory.held_back + 1,
        against=against,
        barred=known,
        not_before=now + pause,
        on_fewer_at=on_fewer_at if on_fewer else memory.on_fewer_at,
        outdated_since=since if outdated else None,
    )


def does_without(view: GangView, memory: GuardMemory) -> bool:
    """Whether the gang runs by a plan without what its nodes lack; an operator may have started it with another one
    since."""
    return bool(memory.replanned) and view.plan_id == memory.replanned


def not_back_yet(memory: GuardMemory, now: float, policy: Policy) -> GuardMemory:
    """After a check found that the gang can't run on all nodes again yet: the pause doubles."""
    pause = _doubled(policy.first_pause_s, memory.looks, policy.most_look_s)
    return replace(memory, looks=memory.looks + 1, return_at=max(memory.return_at, now + pause))


def settling(memory: GuardMemory, now: float, policy: Policy, ports: tuple[str, ...]) -> GuardMemory:
    """After a check that found other active RDMA ports than before: the next check is soon."""
    return replace(memory, ports=ports, return_at=max(memory.return_at, now + policy.first_pause_s))


def returning(memory: GuardMemory, now: float, policy: Policy) -> GuardMemory:
    """Before an attempted return to all nodes: it counts whatever its result, and the next one waits longer."""
    first = max(policy.first_pause_s, policy.degrade_after_s or 0.0)
    pause = _doubled(first, memory.returned, policy.most_return_pause_s)
    return replace(memory, returned=memory.returned + 1, return_at=now + pause)


def returned(memory: GuardMemory) -> GuardMemory:
    """After a successful return to all nodes: forget the time without them, but not the number of returns and the
    earliest time of the next one."""
    return GuardMemory(returned=memory.returned, return_at=memory.return_at, hangs=memory.hangs)


def on_other_nodes(memory: GuardMemory) -> GuardMemory:
    """After the inventory gave its gang other machines: what was found impossible may be possible with them."""
    return replace(memory, barred=(), hopeless=(), unfit=(), on_fewer_at=0.0)


def _remember(view: GangView, memory: GuardMemory, now: float, policy: Policy) -> GuardMemory:
    if view.state is not GangState.READY and not _fewer(view):
        return replace(memory, ready_since=None)
    since = now if memory.ready_since is None else memory.ready_since
    if now - since >= policy.stable_s:
        complete = not view.missing and not does_without(view, memory)
        return replace(
            GuardMemory(ready_since=since, lost=memory.lost, hangs=memory.hangs),
            replanned=memory.replanned,
            returned=0 if complete else memory.returned,
            return_at=0.0 if complete else memory.return_at,
            looks=0 if complete else memory.looks,
        )
    return replace(memory, ready_since=since, held_back=0, against="", given_up=False)


def _fewer(view: GangView) -> bool:
    """Whether it serves normally on fewer nodes than planned."""
    return view.state is GangState.DEGRADED and view.trouble == "nodes"


def _to_return(view: GangView, memory: GuardMemory) -> str:
    """What it serves without and should get back: one of its own nodes (on fewer, or with a spare), or RDMA."""
    if _fewer(view) or (view.state is GangState.READY and view.replaced):
        return f"{', '.join(view.missing)} can be reached again"
    return "it was planned anew, without RDMA" if view.state is GangState.READY and does_without(view, memory) else ""


def _reason(view: GangView, policy: Policy) -> str:
    """Why it must be restarted, '' if it need not be."""
    if view.state is GangState.FAILED and view.ordered:
        return ""  # what failed is the order to stop, on the other nodes
    if view.state is GangState.FAILED:
        return f"{view.cause.node}: {view.cause.text}" if view.cause else "it failed without a known cause"
    if view.state is GangState.DEGRADED and view.trouble == "hung":
        if view.hang_moves:
            return ""  # a restart would begin it again
        return view.cause.text if view.cause else "the engine is hung"
    if view.state.before_go and _staged_s(view) > policy.left_s:
        return f"it is {view.state.value}, and was not started within {policy.left_s:.0f} s"
    return ""


def restarted_for(memory: GuardMemory, view: GangView, now: float) -> GuardMemory:
    """Before a restart: for which hang it is; '' counts none."""
    recent = tuple((name, at) for name, at in memory.hangs if now - at < DAY_S)
    hang = view.cause.hang if view.cause is not None and view.trouble == "hung" else None
    return replace(memory, hangs=(*recent, (hang.name, now)) if hang is not None else recent)


def comes_back(memory: GuardMemory) -> str:
    """What to alarm people with: the class of the newest hang, where it is at least its second restart of a day; ''
    where it is not."""
    name = memory.hangs[-1][0] if memory.hangs else ""
    times = sum(hung == name for hung, _ in memory.hangs)
    return f"{times} restarts within a day for {name}: restarting does not mend it" if times >= AGAIN else ""


def may_finish(begun: GangOperation) -> bool:
    """No command but its operator's may finish a gang that was left stopped for work on its nodes."""
    return begun.turning and not begun.by_hand


def _left_half_way(view: GangView, begun: GangOperation | None) -> str:
    if view.ordered:
        return ""  # a person has stopped it since; a node that could not be told of it still keeps what was begun
    return f"a {begun.what.value} was interrupted" if begun is not None and may_finish(begun) else ""


def _staged_s(view: GangView) -> float:
    """Seconds since the last of its nodes that wait for *go* was staged."""
    return min((node.started_s for node in view.nodes if node.alive and node.state in _WAITING), default=0.0)


def _not_well_words(view: GangView) -> str:
    return "; ".join(view.remarks) or f"{view.state.value}: {view.trouble or 'unknown'}"


def _at_peace(view: GangView, memory: GuardMemory, now: float) -> GuardDecision:
    lost = ", ".join(node.name for node in view.unreachable)
    if view.hang_moves and view.cause is not None:
        return GuardDecision(GuardAction.WARN, f"it is not restarted while that goes on: {view.cause.text}")
    to_return = _to_return(view, memory)
    if to_return and all(node.error is None for node in view.nodes) and now >= memory.return_at:
        return GuardDecision(GuardAction.RETURN, to_return)
    if lost and view.running:
        state = "it still serves" if view.serves else f"it is {view.state.value}"
        return GuardDecision(GuardAction.WARN, f"{lost} can't be reached; {state}")
    if view.state in (GangState.DEGRADED, GangState.UNKNOWN, GangState.FAILED):
        return GuardDecision(GuardAction.WARN, _not_well_words(view))
    # one that continues on the other port of a card is well enough: its operator chooses when to restart
    return GuardDecision(GuardAction.NOTHING, "; ".join((*view.rail_words(), *map(sentence, view.findings))))


WAITS_S = 60.0
"""How long a failed gang waits for a node until its guard says that it can't restart it."""


def waits_in_vain(decision: GuardDecision, view: GangView, memory: GuardMemory, now: float, policy: Policy) -> bool:
    """Whether a due restart waits for a node that stays away, and nothing but that node's return will help."""
    since = memory.away_since if decision.do is GuardAction.WAIT and view.unreachable else None
    return since is not None and policy.degrade_after_s is None and now - since >= WAITS_S


def _when(view: GangView, memory: GuardMemory, now: float, reason: str, policy: Policy) -> GuardDecision:
    lost = ", ".join(node.name for node in view.unreachable)
    left_s, goes_on_s = memory.not_before - now, _goes_on_s(view, memory, now, policy)
    if goes_on_s is not None and goes_on_s <= 0 and (left_s <= 0 or memory.against):
        away = ", ".join(_unusable(view, memory))
        return GuardDecision(GuardAction.DEGRADE, f"{reason}; {away} stayed away", _left_out(view, memory))
    if lost:
        later = "" if goes_on_s is None else f"continuing without it in {max(0.0, goes_on_s):.0f} s"
        return GuardDecision(GuardAction.WAIT, f"{reason}; waiting for {lost} to come back", counting=later)
    if left_s > 0:
        what = "checking again in" if memory.against else "the next restart is in"
        reason = "; ".join(filter(None, (reason, memory.against)))
        return GuardDecision(GuardAction.WAIT, reason, counting=f"{what} {left_s:.0f} s")
    if memory.outdated_since is not None and now >= memory.outdated_since + policy.waits_for_rails_s:
        return GuardDecision(GuardAction.REPLAN, f"{reason}; {memory.against}", _left_out(view, memory))
    return GuardDecision(GuardAction.RESTART, reason)


def _goes_on_s(view: GangView, memory: GuardMemory, now: float, policy: Policy) -> float | None:
    """Seconds until the gang is started without the nodes that are away; None if it never is."""
    if policy.degrade_after_s is None or memory.away_since is None or not _away(view, memory):
        return None
    without = _left_out(view, memory)
    if len(without) == len(view.nodes) + len(view.spares) or memory.hopeless == without:
        return None
    return max(memory.away_since + policy.degrade_after_s, memory.on_fewer_at) - now
