"""Random lives of a service: verbs of two operators, commands that are killed, changes of what is written, faults of
nodes, and a guard."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.simulation.beside import guarded
from tests.simulation.controllers import STAGE
from tests.simulation.explore import Explored
from tests.simulation.gang import Gang, Violated, simulated
from tests.simulation.service import (
    EVERY_VERB,
    NEW_KEY,
    OLD_KEY,
    VERBS,
    Service,
    inventory_of,
    key_of,
    operated,
    serving,
    started,
)
from tests.simulation.world import World

from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.report import AgentState

LONGEST_S = 400.0
"""The longest that verbs may take, with those that wait for each other and a lock that goes stale."""
BEGINS_S = 30.0
"""In which both gangs come up."""
QUIET_S = 6.0
"""After the last verb."""
DRAWN = (*VERBS, *(verb for verb in EVERY_VERB if verb != "router anew"))
"""Those that most operators type are drawn twice as often."""
GUARDED = "guard"
"""A guard of all gangs begins, which restarts what it can."""
KILLS, INTERRUPTS = "killed", "Ctrl-C"
"""What befalls a command of an operator's."""
FINISHES = ("resume", "up", "restart", "down")
"""Verbs after the lock of a command that was killed has gone stale."""
ENDS = ("down", "down --as", "router remove", "sweep", "certify", "maintenance")
"""Verbs that end a gang for good, or leave it so where they end before their time."""
STALE_S = 65.0
RECOVERS_S = 200.0
"""A guard has every gang serve by then: with a lock that goes stale, and restarts that fail while a node is away."""
ROUTER_DIES = "kill-router"
FAULTS = ("kill-rank", "kill-agent", "power-off", "freeze", "partition")
WRITTEN = ("rename", "swap", "forget", "regroup", "new key", "as-it-was")
"""What an operator writes into his inventory: another name for gang1, each gang's name for the other, one gang less, a
node of each gang in the other one, another key for gangs."""
KEY_OF = {"a key": OLD_KEY, "new key": NEW_KEY, "clients' key": OLD_KEY, "clients' new key": NEW_KEY}
"""What it is by then; the clients' is the gangs' too."""
ON_NODES = ("older release", "state directory gone", "host key")
"""What changes on a gang's nodes: what they were staged with is an older release's, or is removed; the leader's key."""
LATER = ("protocol", "flags", "layout", "gpu_uuids")
"""Keys of what is staged that an older release did not have."""
SELDOM = (200_000, 10, 10)
"""gc.set_threshold: each life ends as one large cycle, and looks at all that lives are an eighth of its time."""
CHANGES = (*WRITTEN, *ON_NODES)


@dataclass(frozen=True)
class Happens:
    """what: a verb, a change or a fault; by: an operator, or a node; gang: that he means, as it was started."""

    what: str
    by: int
    at: float
    gang: str = ""


Life = tuple[Happens, ...]


def sample(rng: random.Random) -> Life:
    """Two to five things in 8 s; in one of three lives a fault among them."""
    events = []
    for _ in range(rng.randint(2, 4)):
        at, by = round(8.0 * rng.random(), 3), rng.choice((0, 1))
        if rng.random() < 0.2:
            events.append(Happens(rng.choice(CHANGES), by, at, rng.choice(("gang0", "gang1"))))
        else:
            events.append(Happens(rng.choice(DRAWN), by, at, rng.choice(("gang0", "gang1"))))
    if rng.random() < 1 / 3:
        events.append(Happens(rng.choice(FAULTS), rng.randrange(4), round(8.0 * rng.random(), 3)))
    if rng.random() < 1 / 3:
        events += _befallen(rng, rng.choice(events))
    if rng.random() < 1 / 3:
        events.append(Happens(GUARDED, 0, 0.0))
    return tuple(sorted(events, key=lambda one: one.at))


def _befallen(rng: random.Random, one: Happens) -> list[Happens]:
    """Its operator's command ends before its time, and perhaps somebody finishes it later."""
    at = round(one.at + 5.0 * rng.random(), 3)
    finishes = Happens(rng.choice(FINISHES), rng.choice((0, 1)), at + STALE_S, one.gang or "gang0")
    return [Happens(rng.choice((KILLS, INTERRUPTS)), one.by % 2, at), *([finishes] if rng.random() < 0.5 else [])]


def lives(seed: object) -> Iterator[Life]:
    """Without an end."""
    rng = random.Random(repr(seed))
    return (sample(rng) for _ in itertools.count())


def play_life(life: Life, seed: object = 0) -> Service:
    """Play one to its end. Raises Violated."""
    world = World(seed=(seed, life))
    service = Service(world)
    with simulated(world), operated(service) as folder, ExitStack() as beside:
        whole = inventory_of(service, folder)
        begin_to_serve(service)
        began = world.now
        if any(one.what == GUARDED for one in life):
            beside.enter_context(guarded(service, folder, whole, acts=True))
        for one in life:
            world.after(one.at, lambda one=one: _happen(service, whole, one))  # type: ignore[misc]
        last = began + max(one.at for one in life)

        def idle() -> bool:
            return world.now > last and not any(one.busy for one in service.controllers)

        world.run(last + LONGEST_S, service.check, done=idle)
        if not idle():
            raise Violated(f"a verb does not end within {LONGEST_S:g} s: {service.told()}")
        world.run(world.now + QUIET_S, service.check)
        if any(one.what == GUARDED for one in life):
            _recover(service)
        judge(service)
    return service


def _recover(service: Service) -> None:
    """Raises Violated where the guard does not bring back what it can: with a key that its inventory does not have a
    gang serves, and the router can't have it."""
    world = service.world
    wanted = [gang for name, gang in service.gangs.items() if _comes_back(service, name)]

    def back() -> bool:
        behind = service.router.behind()
        return all(serving(gang) is not None and (gang.url in behind or bool(key_of(gang))) for gang in wanted)

    world.run(world.now + RECOVERS_S, service.check, done=back)
    if not back():
        raise Violated(f"the guard does not bring {[gang.name for gang in wanted]} back: {service.told()}")


def _comes_back(service: Service, name: str) -> bool:
    """Whether a guard is to have it serve in the router in the end. Not where a person has ended it, or was about to;
    where a node of it is gone for good; where its operator has left it stopped to work on its nodes."""
    for_good = name in service.strikes and service.strikes[name].for_good
    ended = any(name in one.gangs and one.verb in ENDS for one in service.verbs)
    return (
        not for_good
        and not ended
        and not key_of(service.gangs[name])
        and not any(node.off for node in service.gangs[name].nodes)
    )


def begin_to_serve(service: Service) -> None:
    """Both gangs serve behind the router, and clients come. No operator starts the gangs: that is a third of what a
    life costs."""
    service.begin()
    for gang in service.gangs.values():
        started(gang)
    world, (operator, *_) = service.world, service.controllers
    world.run(world.now + BEGINS_S, service.check, done=lambda: all(map(reported, service.gangs.values())))
    service.type(operator, "router up", service.names[0])
    world.run(world.now + BEGINS_S, service.check, done=lambda: not operator.busy)
    assert len(service.router.workers) == len(service.names), service.told()
    operator.outcomes.clear()
    service.verbs.clear()
    service.open = True


def reported(gang: Gang) -> bool:
    """Whether all of its nodes say that it is ready."""
    return all(node.report is not None and node.report.state is AgentState.READY for node in gang.nodes)


def _happen(service: Service, whole: Inventory, one: Happens) -> None:
    nodes = [node for gang in service.gangs.values() for node in gang.nodes]
    if one.what == GUARDED:
        return
    if one.what == ROUTER_DIES:
        service.head.end()
        return
    if one.what in FAULTS:
        gang = nodes[one.by].gang
        service.strike(gang, one.what, nodes[one.by])
        return
    if one.what in ON_NODES:
        change_nodes(service, service.gangs[one.gang], one.what)
        return
    controller = service.controllers[one.by]
    if one.what in (KILLS, INTERRUPTS):
        if controller.busy and one.what == KILLS:
            service.kill(one.by)
        elif controller.busy:
            controller.interrupt()
        return
    if one.what in (*WRITTEN, *KEY_OF):
        service.inventories[controller.name] = changed(whole, one.what)
        return
    spec = meant(service.inventories[controller.name], service.gangs[one.gang])
    if spec is not None and not controller.busy:
        service.type(controller, one.what, spec.name)


def meant(inventory: Inventory, gang: Gang) -> GangSpec | None:
    """The gang of this inventory that has its nodes, or its leader at least."""
    leads = [spec for spec in inventory.gangs if spec.nodes[0].name == gang.names[0]]
    return next(iter(leads), None)


def change_nodes(service: Service, gang: Gang, change: str) -> None:
    """Something is changed on its nodes."""
    if change == "host key":
        STAGE[0].strangers.add(gang.names[0])
        service.befall(gang.name, for_good=True)  # a verb that is at work there can't go on
    for node in gang.nodes if change != "host key" else ():
        if change == "older release":
            node.request = {key: value for key, value in node.request.items() if key not in LATER} | {"cache": "/c"}
        else:
            node.lose_files()
            service.befall(gang.name, for_good=True)  # the same


def changed(whole: Inventory, change: str) -> Inventory:
    """The inventory after a change of the first one."""
    first, second = whole.gangs
    names = {"rename": (first.name, "prod-b"), "swap": (second.name, first.name)}.get(change)
    if change == "forget":
        return replace(whole, gangs=(first,))
    if change == "regroup":
        (leads, follows), (other_leads, other_follows) = first.nodes, second.nodes
        mixed = (
            replace(first, nodes=(leads, replace(other_follows, gang=first.name))),
            replace(second, nodes=(other_leads, replace(follows, gang=second.name))),
        )
        return replace(whole, gangs=mixed)
    if change in KEY_OF:
        return with_key(whole, KEY_OF[change], clients=change.startswith("clients"))
    if names is None:
        return whole
    return replace(whole, gangs=tuple(map(renamed, whole.gangs, names)))


def with_key(whole: Inventory, key: str, *, clients: bool) -> Inventory:
    """The inventory after this key was written into the gangs' file; clients: which is the router's too."""
    assert whole.router is not None
    file = Path(str(whole.router.node.state_dir)).with_name("key")
    file.touch(0o600)
    file.write_text(f"{key}\n")
    node = replace(whole.router.node, api_key_file=str(file) if clients else None)
    return replace(whole, router=replace(whole.router, node=node, gang_key_file=str(file)))


def renamed(gang: GangSpec, name: str) -> GangSpec:
    """The gang, its nodes too, under another name."""
    return replace(gang, name=name, nodes=tuple(replace(node, gang=name) for node in gang.nodes))


def judge(service: Service) -> None:
    """At the end: no request was lost by a verb that had not announced it, and whoever serves is in the router."""
    if service.lost:
        raise Violated(f"requests were lost: {len(service.lost)}; {service.told()}")
    behind = {one.url for one in service.router.workers.values()}
    if not service.router.runs:
        return
    if strangers := behind - {gang.url for gang in service.gangs.values()}:
        raise Violated(f"the router sends requests to {sorted(strangers)}: {service.told()}")
    done = all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes)
    for name, gang in service.gangs.items():
        downed = any(one.verb.startswith(("down", "router remove")) and name in one.gangs for one in service.verbs)
        if done and name not in service.strikes and not downed and serving(gang) is not None and gang.url not in behind:
            raise Violated(f"{name} serves, and gets no requests: {service.told()}")


def explore(seed: object, count: int) -> Explored:
    """So many random lives."""
    explored, before = Explored(), gc.get_threshold()
    gc.set_threshold(*SELDOM)
    for life in itertools.islice(lives(seed), count):
        explored.count(f"play_life({life!r}, seed={seed!r})", lambda life=life: play_life(life, seed))  # type: ignore[misc]
    gc.set_threshold(*before)
    return explored
