"""One gang behind the router: `router add`, `router remove`. It serves on, with or without requests."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.gang.serving import lost_models, model_words
from orchestrator.gang.steps.raising import Watcher, everybody_answers
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.routing import (
    Router,
    RouterState,
    behind_router,
    nobodys,
    wait_until_drained,
    wanted_router,
    why_not_in,
    with_addresses,
    would_mix,
)
from orchestrator.gang.steps.status.reports import see
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import Inventory
from orchestrator.remote.fleet import Fleet, StragglerWait


def add_gang(inventory: Inventory, name: str) -> RouterState:
    """Have requests go to this gang, by the names that the inventory has for it now. Raises why they can't."""
    with Router(wanted_router(inventory)) as router, Fleet(inventory.nodes) as fleet:
        _refuse_idle(router)
        (gang,) = chosen_gangs(inventory, (name,))
        views = see(fleet, inventory.gangs, patience=StragglerWait())
        view = next(view for view in views if view.name == gang.name)
        if not view.serves:
            raise InputError(
                f"it is {view.state.value}: only a gang that serves gets requests",
                where=f"gang {name}",
                fix=f"start it with `l40s-deploy up --model NAME --gang {name}`, which adds it to the router",
            )
        serving = [other for other in views if other.serves]
        failure = would_mix(router, serving).get(name) or why_not_in(router, view, serving)
        if failure is not None:
            raise failure
        return _state(router, inventory)


def remove_gang(inventory: Inventory, name: str, turn: RouterTurn, watcher: Watcher) -> RouterState:
    """Have no request go to this gang any more, and return once those that it has are answered; it serves on.

    turn: waited for, like that of every command that takes a gang out.
    """
    (gang,) = chosen_gangs(inventory, (name,))
    with turn, Router(wanted_router(inventory)) as router, Fleet(inventory.nodes) as fleet:
        _refuse_idle(router)
        turn.wait()
        seen = with_addresses(inventory, see(fleet, inventory.gangs, patience=StragglerWait()), router.workers())
        view = next((view for view in seen if view.name == name), None)
        if view is None:
            raise NodeError(
                "where it serves is not known", where=f"gang {name}", fix=f"look at it: `l40s-deploy status {name}`"
            )
        serving = behind_router(router, seen)
        if lost := lost_models([name], serving):
            what = model_words(lost)
            watcher.step(name, f"nobody else serves {what} behind the router: requests for it fail from now on")
        watcher.step(name, "removing it from the router; its running requests are answered first")
        turn.still_ours()
        router.take_out(view.service_url)
        wait_until_drained(fleet, gang, view.service_url)
        return _state(router, inventory)


def _state(router: Router, inventory: Inventory) -> RouterState:
    state = router.state()
    return replace(state, nobodys=nobodys(inventory, state.workers))


def _refuse_idle(router: Router) -> None:
    """Raises where no router serves, or its host can't be asked."""
    view = router.view()
    everybody_answers([view])
    if not view.serves:
        raise NodeError(
            f"the router is {view.state.value}", where=router.spec.node.name, fix="start it: `l40s-deploy router up`"
        )
