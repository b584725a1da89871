"""One gang behind the router: `router add`, `router remove`. It serves on, with or without requests."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.gang.serving import lost_names, name_words
from orchestrator.gang.steps.down import DownRequest, down, refuse_leftovers
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher, everybody_answers
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import Router, RouterState
from orchestrator.gang.steps.router.draining import wait_until_drained
from orchestrator.gang.steps.router.routing import (
    behind_router,
    is_entered,
    refuse_others_turn,
    router_state,
    wanted_router,
    why_not_in,
    with_addresses,
    withdraw,
    would_mix,
)
from orchestrator.gang.steps.status.reports import refuse_elsewhere
from orchestrator.model.advice import start_with_a_model
from orchestrator.model.chosen import chosen_gangs
from orchestrator.protocol.errors import DeployError, InputError, LockHeld, NodeError


def add_gang(operation: Operation, name: str) -> RouterState:
    """Have requests go to this gang, by the names that the inventory has for it now. Raises why they can't; LockHeld
    where another command takes it out, starts or ends it: one that drains must get no requests."""
    router = wanted_router(operation)
    _refuse_idle(router)
    (gang,) = chosen_gangs(operation.inventory, (name,))
    views = operation.glance()
    view = next(view for view in views if view.name == gang.name)
    if not view.serves:
        everybody_answers([view])
        raise InputError(
            f"it is {view.state.value}: only a gang that serves gets requests",
            where=f"gang {name}",
            fix=f"{start_with_a_model(name)}, which adds it to the router",
        )
    serving = [other for other in views if other.serves]
    refuse_others_turn(operation, router, gang)
    failure = would_mix(router, serving).get(name) or why_not_in(router, view, serving)
    if failure is not None:
        raise failure
    try:  # that command may have been typed meanwhile
        refuse_others_turn(operation, router, gang)
    except LockHeld:
        router.take_out(view.service_url)
        raise
    return router_state(operation)


def remove_gang(operation: Operation, name: str, turn: RouterTurn, watcher: Watcher) -> RouterState:
    """Have no request go to this gang any more, and return once those that it has are answered; it serves on.

    turn: waited for, like that of every command that takes a gang out.
    """
    (gang,) = chosen_gangs(operation.inventory, (name,))
    router = wanted_router(operation)
    with turn:
        _refuse_idle(router)
        refuse_elsewhere(view for view in operation.look() if view.name == gang.name)
        turn.wait()
        views = operation.glance()
        seen = with_addresses(operation.inventory, views, router.workers())
        view = next((view for view in seen if view.name == name), None)
        if view is None:
            everybody_answers([view for view in views if view.name == name])
            raise NodeError(
                "where it serves is not known", where=f"gang {name}", fix=f"look at it: `l40s-deploy status {name}`"
            )
        serving = behind_router(router, seen)
        if lost := lost_names([name], serving):
            what = name_words(lost)
            watcher.step(name, f"nobody else serves {what} behind the router: requests for it fail from now on")
        watcher.step(name, "removing it from the router; its running requests are answered first")
        turn.still_ours()
        router.take_out(view.service_url)
        wait_until_drained(operation.fleet, gang, view.service_url, watcher)
        return router_state(operation)


def stop_measured(operation: Operation, name: str, command: str, say: Callable[[str], None]) -> None:
    """Stop a gang that a measurement has started, which is for no clients: at once, unless another command has put it
    behind the router, or whether one has can't be asked; then it leaves it, and answers what it has.

    operation: with the router. Raises what `down` raises, and why something is left.
    """
    entered: bool | None = None
    try:
        entered = is_entered(operation, name)
    except DeployError as unread:
        say(f"{name}: whether it is behind the router is not known, so that it drains: {unread.what}")

    def leave() -> None:
        if entered:
            say(f"{name}: another command has put it behind the router; it leaves it, and drains")
            withdraw(operation, (name,))

    request = DownRequest(gangs=(name,), now=entered is False, command=command)
    refuse_leftovers(down(operation, request, before_stop=leave))


def _refuse_idle(router: Router) -> None:
    """Raises where no router serves, or its host can't be asked."""
    view = router.view()
    everybody_answers([view])
    if not view.serves:
        raise NodeError(
            f"the router is {view.state.value}", where=router.spec.node.name, fix="start it: `l40s-deploy router up`"
        )
