"""Before a gang is started or stopped: whether the router can keep its model apart from those of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.gang.serving import Serves, Serving, names_of
from orchestrator.gang.steps.raising import everybody_answers
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.router_start import installed_for
from orchestrator.gang.steps.router.routing import mixed_models
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.view import GangView


def refuse_mixed_models(router: Router | None, views: Iterable[GangView], plans: Mapping[str, Serves]) -> None:
    """Raise FindingsError where requests would be answered by a gang that does not serve what they name, at any time
    while these gangs are started one after the other: a router that does not look at models stands before two of them.

    views: of every gang of the inventory. plans: by gang, what is about to serve. Raises Unreachable where gangs with
    different names would stand behind a router whose host does not answer.
    """
    if router is None or not plans:
        return
    now = {view.name: view for view in views if view.running and view.model}
    mixed = next((pair for name in plans if (pair := _beside(name, plans, now))), None)
    if mixed is None:
        return
    if not _looks_at_models(router):
        raise mixed_models(router.spec, next(iter(mixed)), mixed)


def forget_other_models(router: Router | None, views: Iterable[GangView], rise: Mapping[str, Staged]) -> None:
    """Take the addresses of gangs that ended without leaving the router, and that are about to serve another model, out
    of it: it would send the old model's requests there as soon as the address answers.

    rise: by gang, what is about to be started. Raises Unreachable where the router's host does not answer.
    """
    ended = [view for view in views if view.name in rise and view.model and not view.running]
    urls = [rise[view.name].service_url for view in ended if {*names_of(view)} != {*names_of(rise[view.name])}]
    if router is None or not urls:
        return
    if _view(router).serves:
        for url in urls:
            router.take_out(url)


def _beside(name: str, then: Mapping[str, Serves], now: Mapping[str, Serves]) -> Serving | None:
    """This gang with its names, and another one that has or will have others; None where there is none."""
    for others in (now, then):
        for other, gang in others.items():
            if other != name and not _answer_alike(then[name], gang):
                return {name: names_of(then[name]), other: names_of(gang)}
    return None


def _answer_alike(gang: Serves, other: Serves) -> bool:
    """By their names; by their models where an older release started one of them, whose names are not known."""
    unknown = not gang.served or not other.served
    return {*names_of(gang)} == {*names_of(other)} or (unknown and gang.model == other.model)


def _looks_at_models(router: Router) -> bool:
    """The one that runs; where none does, the one that would be started."""
    if _view(router).running:
        return router.looks_at_models()
    return installed_for(router).release.by_model


def _view(router: Router) -> GangView:
    """Raises why its host can't be asked."""
    view = router.view()
    everybody_answers([view])
    return view
