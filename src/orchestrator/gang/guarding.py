"""What a guard does about a gang, from how it is and what was done before. Pure: a table of cases holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from orchestrator.gang.begun import Begun
from orchestrator.gang.rails import sentence
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState

_BEFORE_GO = (GangState.STAGED, GangState.ARMED)
_WAITING = (NodeState.STAGED, NodeState.ARMED)


class Do(str, Enum):
    """NOTHING. WARN: tell, and leave it alone. WAIT: a restart is due, not yet. RESTART. GIVE_UP: tell, and stop.
    DEGRADE: start it without the nodes that stay away, on spares or on fewer. REPLAN: its plan can't be carried out any
    more; start it by a new one. RETURN: what it goes on without may be back; see whether it can run as before."""

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
    most_pause_s, in seconds. stable_s: a gang that was ready for so long has forgotten its restarts. left_s: one that
    was staged that long ago and not started since was abandoned (a command at work would hold its lock).

    A finding that forbids a start holds the restart back, and is looked at again: the pause doubles from first_pause_s
    up to most_look_s. tell_at: the look in a row at which its operator is told, since what passes needs nobody.

    degrade_after_s: a gang that has failed goes on without a node that was away for so long; None: it waits for it.

    replan_after_s: a gang whose plan needs RDMA is planned anew where a node has had no usable port for so long: links
    train after a boot. A shorter degrade_after_s is taken instead.

    return_limit, most_return_pause_s: returns to all nodes in a row before it leaves the way back to an operator, and
    the most that it waits before the next one. The wait doubles from degrade_after_s (at least first_pause_s), so that
    a node that comes and goes restarts the gang ever less often. A gang that served on all nodes for stable_s has
    forgotten them.
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
        """How long a node without any usable RDMA port is waited for."""
        return min(self.replan_after_s, self.replan_after_s if self.degrade_after_s is None else self.degrade_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a guard remembers of one gang. Times are the guard's own clock in seconds.

    restarts:    in a row, since the gang was last stable
    held_back:   looks in a row at which something forbade the restart
    against:     what forbade it then, as text
    not_before:  no restart before this
    ready_since: None while it is not ready
    given_up:    for the operator to look at; over once the gang is ready again
    barred:      nodes and spares that had a finding of severity stop, or did not answer the doctor, when a start was
                 last thought of
    away_since:  since when some node is away (does not answer, or is barred) while a restart is due; None while none is
    hopeless:    nodes without which it was found that the gang can't run
    on_fewer_at: no start without the nodes that are away before this
    unfit:       spares that a start has failed with
    outdated_since: since when its plan is known to need what its nodes don't have; None where it does not
    replanned:   id of the plan that does without that, once it was started by it
    return_at:   no look at whether it can run on all nodes again before this; looks: such looks in a row
    ports:       the active RDMA ports at the last of them; None before the first
    returned:    returns to all nodes that were tried, since the gang was last stable on all of them
    """

    restarts: int = 0
    held_back: int = 0
    against: str = ""
    not_before: float = 0.0
    ready_since: float | None = None
    given_up: bool = False
    barred: tuple[str, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why, in words for the audit log and the hooks. without: nodes that a DEGRADE or a REPLAN leaves
    out."""

    do: Do
    why: str = ""
    without: tuple[str, ...] = ()


def decide(
    view: GangView, memory: Memory, now: float, policy: Policy, begun: Begun | None = None
) -> tuple[Decision, Memory]:
    """The decision, and what to remember from now on.

    A gang that an operator has stopped is not started; one that a command starts or stops is left to it, unless it
    has left it between staging and start, or was killed in this gang's turn (begun).
    """
    remembered = _remember(view, memory, now, policy)
    reason = _reason(view, policy) or _left_half_way(begun)
    if not reason:
        return _at_peace(view, remembered, now), replace(remembered, away_since=None, barred=(), outdated_since=None)
    remembered = _mind_the_away(view, remembered, now)
    if remembered.given_up:
        return Decision(Do.NOTHING, "the guard has given up; an operator must act"), remembered
    if remembered.restarts >= policy.limit:
        why = f"{reason}; {remembered.restarts} restarts in a row did not help"
        return Decision(Do.GIVE_UP, why), replace(remembered, given_up=True)
    return _when(view, remembered, now, reason, policy), remembered


def _not_to_be_had(view: GangView, memory: Memory) -> tuple[str, ...]:
    """Nodes that no start can have now, in their order: a node that the run was started without and that is back is
    none of them."""
    return tuple(node.name for node in view.nodes if node.error is not None or node.name in memory.barred)


def _away(view: GangView, memory: Memory) -> tuple[str, ...]:
    """Those of them that the gang needs."""
    return tuple(name for name in _not_to_be_had(view, memory) if name not in view.missing)


def _left_out(view: GangView, memory: Memory) -> tuple[str, ...]:
    """What a start without the nodes that are away leaves out: spares that can't take a place too."""
    return (*_not_to_be_had(view, memory), *_unfit(view, memory))


def _mind_the_away(view: GangView, memory: Memory, now: float) -> Memory:
    if view.unreachable and now >= memory.not_before:
        memory = replace(memory, barred=())  # who waits for another node asks the doctor about these again
    if not _away(view, memory):
        return replace(memory, away_since=None, hopeless=())
    return memory if memory.away_since is not None else replace(memory, away_since=now)


def restarted(memory: Memory, now: float, policy: Policy) -> Memory:
    """After a restart was tried, whatever came of it."""
    pause = min(policy.most_pause_s, policy.first_pause_s * 2.0**memory.restarts)
    return replace(
        memory,
        restarts=memory.restarts + 1,
        held_back=0,
        against="",
        barred=(),
        not_before=now + pause,
        on_fewer_at=0.0,
        outdated_since=None,
        ready_since=None,
    )


def held_back(memory: Memory, now: float, policy: Policy, against: str, barred: tuple[str, ...] = ()) -> Memory:
    """After something forbade a restart: none was tried and none counts, it is looked at again after a pause."""
    pause = min(policy.most_look_s, policy.first_pause_s * 2.0 ** min(memory.held_back, 32))
    return replace(
        memory,
        held_back=memory.held_back + 1,
        against=against,
        barred=barred,
        not_before=now + pause,
        outdated_since=None,
    )


def outdated(memory: Memory, now: float, policy: Policy, against: str, barred: tuple[str, ...] = ()) -> Memory:
    """After it was found that the gang's plan can't be carried out any more: that may pass, as any finding."""
    since = now if memory.outdated_since is None else memory.outdated_since
    return replace(held_back(memory, now, policy, against, barred), outdated_since=since)


def up_to_date(memory: Memory) -> Memory:
    """After it was found that the gang's plan can be carried out again."""
    return replace(memory, outdated_since=None)


def replanned(memory: Memory, plan_id: str) -> Memory:
    """After the gang was started by a plan that does without what its nodes have no more."""
    return replace(memory, replanned=plan_id)


def does_without(view: GangView, memory: Memory) -> bool:
    """The gang runs by such a plan; an operator may have started it by another one since."""
    return bool(memory.replanned) and view.plan_id == memory.replanned


def held_back_on_fewer(memory: Memory, now: float, policy: Policy, against: str, barred: tuple[str, ...]) -> Memory:
    """After something forbade a start without the nodes that are away: it counts as little as a restart that was held
    back. Where it names nodes that were not known, the next one is without these too, and at once."""
    known = (*memory.barred, *(name for name in barred if name not in memory.barred))
    found = held_back(memory, now, policy, against, known)
    return replace(found, on_fewer_at=now if known != memory.barred else found.not_before)


def can_not_go_on(memory: Memory, without: tuple[str, ...]) -> Memory:
    """After it was found that no layout fits the nodes that are left: that is not tried again."""
    return replace(memory, hopeless=without)


def spares_failed(memory: Memory, spares: tuple[str, ...]) -> Memory:
    """After a start with these spares has failed: the next one is without them."""
    return replace(memory, unfit=(*memory.unfit, *(name for name in spares if name not in memory.unfit)))


def not_back_yet(memory: Memory, now: float, policy: Policy) -> Memory:
    """After a look at whether the gang can run on all nodes again, where it does not yet: the pause doubles."""
    pause = min(policy.most_look_s, policy.first_pause_s * 2.0 ** min(memory.looks, 32))
    return replace(memory, looks=memory.looks + 1, return_at=max(memory.return_at, now + pause))


def has_settled(memory: Memory, ports: tuple[str, ...]) -> bool:
    """Whether the RDMA ports that are active now are those of the last look: after a boot or the restart of a switch
    they come back one by one, and a return in between would leave the gang with some of them until its next restart."""
    return memory.ports == ports


def settling(memory: Memory, now: float, policy: Policy, ports: tuple[str, ...]) -> Memory:
    """After a look at which the active RDMA ports were others than before: the next look is soon."""
    return replace(memory, ports=ports, return_at=max(memory.return_at, now + policy.first_pause_s))


def returning(memory: Memory, now: float, policy: Policy) -> Memory:
    """Before a return to all nodes is tried: it counts whatever comes of it, and the next one waits longer."""
    first = max(policy.first_pause_s, policy.degrade_after_s or 0.0)
    pause = min(policy.most_return_pause_s, first * 2.0 ** min(memory.returned, 32))
    return replace(memory, returned=memory.returned + 1, return_at=now + pause)


def returned(memory: Memory) -> Memory:
    """After a return to all nodes has worked: what was remembered of the time without them is over; that the gang was
    returned, and how soon it may be again, is not."""
    return Memory(returned=memory.returned, return_at=memory.return_at)


def may_return(memory: Memory, policy: Policy) -> bool:
    """Whether the guard may still do it by itself."""
    return memory.returned < policy.return_limit


def is_due_to_be_told(memory: Memory, policy: Policy) -> bool:
    """Whether this look, just counted by `held_back`, is the one at which the operator hears of it."""
    return memory.held_back == policy.tell_at


def _remember(view: GangView, memory: Memory, now: float, policy: Policy) -> Memory:
    if view.state is not GangState.READY and not _fewer(view):
        return replace(memory, ready_since=None)
    since = now if memory.ready_since is None else memory.ready_since
    if now - since >= policy.stable_s:
        complete = not view.missing and not does_without(view, memory)
        return replace(
            Memory(ready_since=since),
            replanned=memory.replanned,
            returned=0 if complete else memory.returned,
            return_at=0.0 if complete else memory.return_at,
            looks=0 if complete else memory.looks,
        )
    return replace(memory, ready_since=since, held_back=0, against="", given_up=False)


def _fewer(view: GangView) -> bool:
    """It serves as well as it can on the nodes that it has."""
    return view.state is GangState.DEGRADED and view.trouble == "nodes"


def _to_return(view: GangView, memory: Memory) -> str:
    """What it serves without, and would be better with: one of its own nodes (on fewer, or with a spare), or RDMA."""
    if _fewer(view) or (view.state is GangState.READY and view.replaced):
        return f"{', '.join(view.missing)} can be reached again"
    return "it was planned anew, without RDMA" if view.state is GangState.READY and does_without(view, memory) else ""


def _reason(view: GangView, policy: Policy) -> str:
    """Why it must be restarted, '' where it need not."""
    if view.state is GangState.FAILED:
        return f"{view.cause.node}: {view.cause.text}" if view.cause else "it failed without a known cause"
    if view.state is GangState.DEGRADED and view.trouble == "hung":
        return view.cause.text if view.cause else "the engine is hung"
    if view.state in _BEFORE_GO and _staged_s(view) > policy.left_s:
        return f"it is {view.state.value}, and was not started within {policy.left_s:.0f} s"
    return ""


def may_finish(begun: Begun) -> bool:
    """A gang that was left stopped for work on its nodes is its operator's."""
    return begun.turning and not begun.by_hand


def _left_half_way(begun: Begun | None) -> str:
    return f"a {begun.what.value} was interrupted" if begun is not None and may_finish(begun) else ""


def _staged_s(view: GangView) -> float:
    """How long ago the last of its nodes that wait for *go* was staged."""
    return min((node.started_s for node in view.nodes if node.alive and node.state in _WAITING), default=0.0)


def _at_peace(view: GangView, memory: Memory, now: float) -> Decision:
    lost = ", ".join(node.name for node in view.unreachable)
    to_return = _to_return(view, memory)
    if to_return and all(node.error is None for node in view.nodes) and now >= memory.return_at:
        return Decision(Do.RETURN, to_return)
    if lost and view.running:
        return Decision(Do.WARN, f"{lost} can't be reached; the other nodes still serve with it")
    if view.state is GangState.DEGRADED:
        return Decision(Do.WARN, "; ".join(view.remarks) or f"degraded: {view.trouble or 'unknown'}")
    return Decision(Do.NOTHING, _of_rails(view))


def _of_rails(view: GangView) -> str:
    """A gang that goes on over the other port of a card is well enough: its operator chooses the moment."""
    return "; ".join(f"{node.name}: {sentence(rail, view.name)}" for node in view.nodes for rail in node.rails)


def _when(view: GangView, memory: Memory, now: float, reason: str, policy: Policy) -> Decision:
    lost = ", ".join(node.name for node in view.unreachable)
    left_s = memory.not_before - now
    goes_on_s = _goes_on_s(view, memory, now, policy)
    if goes_on_s is not None and goes_on_s <= 0 and (left_s <= 0 or memory.against):
        away = ", ".join(_not_to_be_had(view, memory))
        return Decision(Do.DEGRADE, f"{reason}; {away} stayed away", _left_out(view, memory))
    if lost:
        later = "" if goes_on_s is None else f"; continuing without it in {max(0.0, goes_on_s):.0f} s"
        return Decision(Do.WAIT, f"{reason}; waiting for {lost} to come back{later}")
    if left_s > 0 and memory.against:
        return Decision(Do.WAIT, f"{reason}; {memory.against}; checking again in {left_s:.0f} s")
    if left_s > 0:
        return Decision(Do.WAIT, f"{reason}; the next restart is in {left_s:.0f} s")
    if memory.outdated_since is not None and now >= memory.outdated_since + policy.waits_for_rails_s:
        return Decision(Do.REPLAN, f"{reason}; {memory.against}", _left_out(view, memory))
    return Decision(Do.RESTART, reason)


def _goes_on_s(view: GangView, memory: Memory, now: float, policy: Policy) -> float | None:
    """Seconds until the gang is started without the nodes that are away; None where it is not to be."""
    if policy.degrade_after_s is None or memory.away_since is None or not _away(view, memory):
        return None
    without = _left_out(view, memory)
    left = len(view.nodes) + len(view.spares) - len(without)
    if not left or memory.hopeless == without:
        return None
    return max(memory.away_since + policy.degrade_after_s, memory.on_fewer_at) - now


def _unfit(view: GangView, memory: Memory) -> tuple[str, ...]:
    """Idle spares that can't take a place now."""
    unfit = {*memory.unfit, *memory.barred}
    return tuple(node.name for node in view.spares if node.error is not None or node.name in unfit)
