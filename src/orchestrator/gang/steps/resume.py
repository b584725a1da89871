"""What an interrupted command has begun is finished, from wherever the nodes are now: by a guard, by the next `up`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.replay import facts_of_now, staged_plan
from orchestrator.gang.steps.restart import ROLLING, RestartRequest, restart
from orchestrator.gang.steps.router.routing import rejoin
from orchestrator.gang.steps.status.reports import as_they_run, interrupted, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.planning.steps.changes import GangRehearsal, would
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeResult:
    """views: the gangs that were restarted, as they were seen last. words: what is left for the operator to do."""

    views: tuple[GangView, ...] = ()
    words: tuple[str, ...] = ()


def resume(
    inventory: Inventory, names: Sequence[str], watcher: Watcher, *, command: str, timeout_s: float
) -> ResumeResult:
    """Finish interrupted work on the chosen gangs that no command holds. timeout_s: for each gang's start.

    First every partly changed gang serves again and is in the router, then `go_on`. A changed plan that not all nodes
    of a gang have yet is given up: the gang keeps its previous one. Raises InputError where nothing was begun,
    Unreachable before anything is done, LockHeld, and what a start raises; what is not finished stays begun.
    """
    gangs = chosen_gangs(inventory, names)
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet, ExitStack() as opened:
        specs = {gang.name: gang for gang in as_they_run(fleet, gangs)}
        left = _left(fleet, specs.values())
        locks = {one.gang: opened.enter_context(GangLock(fleet, specs[one.gang], command)) for one in left}
        views = {}
        for begun in left:
            name = begun.gang
            if begun.turning and (
                view := finish(inventory, locks[name], specs[name], begun, watcher, timeout_s=timeout_s)
            ):
                views[name] = view
        waiting = [begun for begun in left if begun.gang not in views]
        for begun in waiting:
            if not _goes_on(begun):
                locks[begun.gang].finish()
    went_on, words = go_on(inventory, waiting, command, watcher)
    views |= {view.name: view for view in went_on}
    return ResumeResult(views=tuple(views[name] for name in specs if name in views), words=words)


def rehearse_resume(inventory: Inventory, names: Sequence[str]) -> tuple[GangRehearsal, ...]:
    """What `resume` would do to the gangs on which a command was interrupted. Raises as it does."""
    gangs = chosen_gangs(inventory, names)
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        left = {begun.gang: begun for begun in _left(fleet, gangs)}
        views = see(fleet, [gang for gang in gangs if gang.name in left])
    return tuple(would(view, view.plan_id, _would(left[view.name])) for view in views)


def _would(begun: GangOperation) -> str:
    what = f"the {begun.what.value} that {begun.who}@{begun.host} began"
    if begun.turning:
        return f"{what} would be finished"
    return f"{what} would be continued with this gang" if _goes_on(begun) else f"{what} would not reach this gang"


def _left(fleet: Fleet, gangs: Iterable[GangSpec]) -> tuple[GangOperation, ...]:
    gangs = tuple(gangs)
    left = interrupted(fleet, gangs)
    if not left:
        raise InputError(
            "no model was given, and no interrupted command has left anything to finish",
            where="command line",
            fix="add --model NAME; run `l40s-deploy models` for the list",
        )
    names = {begun.gang for begun in left}
    raising.everybody_answers(see(fleet, [gang for gang in gangs if gang.name in names]))
    return left


def finish(
    inventory: Inventory,
    lock: GangLock,
    gang: GangSpec,
    begun: GangOperation,
    watcher: Watcher,
    *,
    timeout_s: float,
) -> GangView | None:
    """Have a gang serve whose restart was interrupted, and be in the router. lock: is held.

    None where it had not come to the stop: it serves the run that it had, and nothing is lost.
    """
    fleet = lock.fleet
    (view,) = see(fleet, [gang])
    if view.run_id == begun.was_run and view.serves:
        rejoin(inventory, [view], watcher)
        lock.begin(replace(begun, turning=False))
        return None
    watcher.step(gang.name, f"finishing the {begun.what.value} that {begun.who}@{begun.host} began")
    if view.state is GangState.DEGRADED and not view.serves:
        stop(fleet, [gang], watcher, now=True)
    view = _serving_again(fleet, gang, begun, watcher, timeout_s)
    rejoin(inventory, [view], watcher)
    lock.finish()
    return view


def _serving_again(fleet: Fleet, gang: GangSpec, begun: GangOperation, watcher: Watcher, timeout_s: float) -> GangView:
    """With the plan that all its nodes hold; where they hold several, or it does not come up, with the one before."""
    now = facts_of_now(fleet, watcher)

    def start(run_id: str = "") -> GangView:
        plan = staged_plan(fleet, gang, run_id=run_id)
        rising = plan.rising(going_back=bool(run_id), of_now=now)
        return raising.raise_all(fleet, [rising], watcher, timeout_s=timeout_s).views[0]

    try:
        plan_id = staged_plan(fleet, gang).plan_id
    except InputError:
        watcher.step(gang.name, "not all of its nodes have the new plan; restoring the one before")
        return start(begun.was_run)
    try:
        return start()
    except DeployError as failure:
        if begun.what is not OperationKind.CHANGE or staged_plan(fleet, gang, run_id=begun.was_run).plan_id == plan_id:
            raise
        watcher.step(gang.name, f"{failure.where}: {failure.what}; restoring the plan before")
    return start(begun.was_run)


def _goes_on(begun: GangOperation) -> bool:
    """A rolling restart does with the gangs that it had not reached: others serve behind the router meanwhile."""
    return begun.what is OperationKind.ROLLING and not begun.options.get("without_router")


def go_on(
    inventory: Inventory, waiting: Sequence[GangOperation], command: str, watcher: Watcher
) -> tuple[tuple[GangView, ...], tuple[str, ...]]:
    """Restart the gangs that an interrupted rolling restart had not reached, by its options; the views of these.

    What else was not reached serves as before, until its own command is repeated: as text.
    """
    words = tuple(
        f"{begun.gang} was not reached and serves as before: for its {begun.what.value}, run `{begun.command}` again,"
        " for it alone"
        for begun in waiting
        if not _goes_on(begun)
    )
    rolling = [begun for begun in waiting if _goes_on(begun)]
    if not rolling:
        return (), words
    names = tuple(begun.gang for begun in rolling)
    request = RestartRequest(verb=ROLLING, gangs=names, command=command, **_known(rolling[0]))
    return restart(inventory, request, watcher).views, words


def _known(begun: GangOperation) -> dict[str, Any]:
    """The options that were kept, as far as they are ones of this release."""
    known = set(RestartRequest.__dataclass_fields__) - {"verb", "gangs", "command"}
    return {name: value for name, value in begun.options.items() if name in known}
