"""One gang's turn behind the router: out, until no request runs there; and in again. Shared by whatever rolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.model.inventory import GangSpec
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows.gang import up
from orchestrator.workflows.router.routing import Router, wait_until_drained


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a gang serves. serving: requests are answered there now, so that there are some to wait for."""

    gang: GangSpec
    url: str
    serving: bool = True


def set_aside(
    fleet: Fleet,
    router: Router | None,
    places: Sequence[Place],
    watcher: up.Watcher,
    *,
    drain_s: float,
) -> None:
    """Have no request go there, and wait until none runs. What ends it puts them back: nothing was stopped."""
    try:
        if router is not None:
            for place in places:
                watcher.step(place.gang.name, "taking it out of the router")
                router.take_out(place.url)
        for place in places:
            if place.serving:
                watcher.step(place.gang.name, "waiting until no request runs")
                wait_until_drained(fleet, place.gang, place.url, deadline_s=drain_s)
    except BaseException:
        put_back(router, [place for place in places if place.serving], watcher)
        raise


def put_back(router: Router | None, places: Sequence[Place], watcher: up.Watcher) -> None:
    """Have requests go there again."""
    if router is None:
        return
    for place in places:
        watcher.step(place.gang.name, "taking it into the router")
        router.take_in(place.url)
