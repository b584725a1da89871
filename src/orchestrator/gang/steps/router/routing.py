"""The router before the gangs: started like a gang of one node without ranks, and told of the gangs that serve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.engines import router as words
from orchestrator.engines.serving import UNKNOWN_MODEL, Worker, run_entry
from orchestrator.gang.agreement import DISAGREES
from orchestrator.gang.operations import NO_VERDICT
from orchestrator.gang.serving import UNKNOWN_NAMES, Names, Serving, lost_names, name_words, names_of
from orchestrator.gang.steps.changes import GangRehearsal, would, would_stop
from orchestrator.gang.steps.down import DOWN, StopResult, stop_gangs, told_to_end
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher, everybody_answers, raise_all
from orchestrator.gang.steps.router.claim import claimed
from orchestrator.gang.steps.router.client import ANEW, KeyRefused, Router, RouterState
from orchestrator.gang.steps.router.draining import requests_end
from orchestrator.gang.steps.router.router_start import (
    installed_for,
    limit_now,
    refuse_expired,
    refuse_two_keys,
    start_now,
    start_of,
)
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.steps.status.reports import begun_on, refuse_elsewhere
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import HEALTH_S, ROUTER_START_S, STOP_S
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import AUTO, ROUTER_GANG, GangSpec, Inventory, RouterSpec
from orchestrator.protocol.errors import (
    DeployError,
    FindingsError,
    InputError,
    LockHeld,
    NodeError,
    RunsElsewhere,
    WithoutFiles,
)
from orchestrator.protocol.verbs import LockHolder


def wanted_router(operation: Operation) -> Router:
    """The operation's router; raises InputError if its inventory has none."""
    if operation.router is None:
        raise InputError(
            "has no router, so requests cannot be sent to another gang",
            where=operation.inventory.path,
            fix="add a group `router` with one host beside `gangs` (inventory/reference.yml shows it)",
        )
    return operation.router


def router_state(operation: Operation) -> RouterState:
    """Look at the router."""
    state = wanted_router(operation).state()
    return replace(state, nobodys=_nobodys(operation, state.workers))


def _nobodys(operation: Operation, workers: Iterable[Worker]) -> frozenset[str]:
    stated = {node.stated_url for node in operation.inventory.nodes}
    left = {worker.url for worker in workers if worker.url not in stated}
    if not left:
        return frozenset()
    views = operation.glance()
    known = {view.service_url.rstrip("/") for view in views}
    return frozenset(url for url in left if url not in known)


def start_router(
    operation: Operation, watcher: Watcher, *, command: str, timeout_s: float = ROUTER_START_S, ours: str = ""
) -> RouterState:
    """Have the router running, with every gang that serves behind it; one that serves is left alone.

    timeout_s: for its own start; ours: as of `_not_changed_by_others`.

    Raises why a gang could not be taken in once the others are; once all are, why its own files can't be read.
    """
    router, inventory = wanted_router(operation), operation.inventory
    now = router.view()
    refuse_elsewhere([now])
    gangs = operation.look()
    wanted = _wanted_start(router, inventory, gangs, serves=now.serves)
    if not now.serves and isinstance(wanted, Staged):
        refuse_expired(router.spec)
        refuse_two_keys(router.spec, wanted)
        with GangLock(router.fleet, router.gang, command):
            now = router.view()  # one that is starting is waited for, whatever its settings
            start = start_now(router, inventory, gangs, plan_id=now.plan_id) if now.running else wanted
            raise_all(router.fleet, [start], watcher, timeout_s=timeout_s)
        gangs = operation.look()  # one that became ready meanwhile found no router
    suits = not isinstance(wanted, Staged) or _suits(router, wanted)
    if not suits:
        watcher.step(ROUTER_GANG, f"its settings differ from the current configuration. {_how_to_apply(router, gangs)}")
    _say_limit(router, inventory, gangs, watcher)
    _say_elsewhere(gangs, watcher)
    _, failures = _take_in_undisturbed(operation, router, gangs, watcher, ours)
    failure = next(iter(failures.values()), None)
    if failure is None and isinstance(wanted, InputError):
        raise wanted
    if failure is None:
        return router.state()
    if not suits and not isinstance(failure, KeyRefused):
        failure.fix = f"it checks the gangs' health at a path that some gangs may not have: {ANEW} fixes that"
    raise failure


def _wanted_start(
    router: Router, inventory: Inventory, gangs: Sequence[GangView], *, serves: bool
) -> Staged | InputError:
    """What a start would carry out now; where the router serves, why a file that its start needs can't be read: it has
    read it, and a gang needs none of them."""
    try:
        return start_now(router, inventory, gangs)
    except InputError as unread:
        if not serves:
            raise
        return unread


def _suits(router: Router, wanted: Staged) -> bool:
    """Whether it runs with these settings, or with those for gangs of any version."""
    at = installed_for(router)
    return router.view().plan_id in (wanted.plan_id, start_of(router, words.ANY_HEALTH, at).plan_id)


def _how_to_apply(router: Router, gangs: Iterable[GangView]) -> str:
    """The order in which a new key loses nothing: a gang first, so that the router has where to send requests."""
    urls = [view.service_url for view in gangs if view.serves and view.service_url]
    if urls and router.asks_for_another_key() and not any(map(router.accepts_key, urls)):
        return f"No gang has the new key yet: run `up` with their model first, then {ANEW}"
    return f"Apply them: {ANEW}"


def _say_elsewhere(gangs: Iterable[GangView], watcher: Watcher) -> None:
    """What runs under another name or in another place: whether it serves is not known, so its entry stays as it is."""
    for view in gangs:
        errors = (node.error for node in view.nodes if isinstance(node.error, RunsElsewhere))
        if (error := next(errors, None)) is not None:
            watcher.step(view.name, f"neither added to the router nor taken out: {error.what}")


def _say_limit(router: Router, inventory: Inventory, gangs: Sequence[GangView], watcher: Watcher) -> None:
    """Where the gangs decide about it, and run by now what its start did not know of."""
    if router.spec.max_requests != AUTO:
        return
    has, now = router.view().request_limit, limit_now(router, inventory, gangs)
    if has is None:
        advice = f". Apply {now:,}: {ANEW}" if now else ""
        why = "it lets in any number of requests: no gang told at its start how many it runs at once"
        watcher.step(ROUTER_GANG, f"{why}{advice}")
    elif now not in (None, has):
        watcher.step(ROUTER_GANG, f"at most {has:,} requests at once; by what its gangs run now {now:,}. Apply: {ANEW}")


def raise_router(operation: Operation, router: Router, watcher: Watcher) -> GangView:
    """Start a router of which nothing is left, and whose lock is held, with every gang that serves behind it. Raises as
    `up` does; why a gang could not be taken in is said."""
    refuse_expired(router.spec)
    start = start_now(router, operation.inventory, operation.glance())
    refuse_two_keys(router.spec, start)
    raise_all(router.fleet, [start], watcher, timeout_s=ROUTER_START_S)
    take_in_serving(operation, router, watcher)
    return router.view()


def take_in_all(router: Router, gangs: Iterable[GangView]) -> Mapping[str, DeployError]:
    """Have requests go to every gang that serves; by its name, why one could not be taken in."""
    serving = [view for view in gangs if view.serves]
    mixed = would_mix(router, serving)
    tried = {view.name: mixed.get(view.name) or why_not_in(router, view, serving) for view in serving}
    return {name: failure for name, failure in tried.items() if failure is not None}


def _without(gangs: Sequence[GangView], names: Collection[str]) -> list[GangView]:
    return [view for view in gangs if view.name not in names]


def _new_behind(gangs: Iterable[GangView], urls: Collection[str]) -> list[GangView]:
    return [view for view in gangs if view.service_url.rstrip("/") not in urls]


def _take_in_undisturbed(
    operation: Operation, router: Router, gangs: Sequence[GangView], watcher: Watcher, ours: str
) -> tuple[list[GangView], Mapping[str, DeployError]]:
    """Have requests go to those that serve and that no other command takes out, starts or ends: these, and by name why
    one could not be taken in.

    ours: as of `_not_changed_by_others`. Another command may be typed meanwhile, so that what was added is looked at
    once more: whatever another one takes out by then, or ends, is taken out again.
    """
    behind = {worker.url for worker in router.workers()}
    serving = [view for view in _not_changed_by_others(router, gangs, watcher, ours) if view.serves]
    ending = told_to_end(operation.fleet, _specs(operation, serving))
    views = _without(serving, ending | _say_unjudged(operation, _new_behind(serving, behind), watcher))
    failures = take_in_all(router, views)
    added = [view for view in _new_behind(views, behind) if view.name not in failures]
    ending |= _ended_meanwhile(operation, added)
    taken = ending | _taken_meanwhile(router, added, watcher, ours)
    for view in added:
        if view.name in taken:
            router.take_out(view.service_url)
    for name in sorted(ending):
        watcher.step(name, f"not added to the router: `{DOWN}` ends it")
    return _without(views, taken), failures


def _specs(operation: Operation, views: Iterable[GangView]) -> list[GangSpec]:
    names = {view.name for view in views}
    return [gang for gang in operation.inventory.gangs if gang.name in names]


def _say_unjudged(operation: Operation, views: Sequence[GangView], watcher: Watcher) -> frozenset[str]:
    """Names of those that run a plan on which a gate came to no verdict."""
    if not views:
        return frozenset()
    runs = {view.name: view.run_id for view in views}
    begun = begun_on(operation.fleet, _specs(operation, views))
    left = frozenset(each.gang for each in begun if not each.lets_in(runs[each.gang]))
    for name in sorted(left):
        watcher.step(name, f"not added to the router: {NO_VERDICT}")
    return left


def _ended_meanwhile(operation: Operation, added: Sequence[GangView]) -> frozenset[str]:
    """Names of those that a `down` ends, or has ended, since they were seen."""
    if not added:
        return frozenset()
    gangs = _specs(operation, added)
    now = operation.glance(gangs)
    return told_to_end(operation.fleet, gangs) | {view.name for view in now if not view.serves}


def _taken_meanwhile(router: Router, added: Sequence[GangView], watcher: Watcher, ours: str) -> frozenset[str]:
    """Names of those that another command takes out, or starts, since they were seen. ours: as below"""
    if not added:
        return frozenset()
    left = _not_changed_by_others(router, added, watcher, ours)
    return frozenset(view.name for view in added if view not in left)


def _not_changed_by_others(
    router: Router, gangs: Sequence[GangView], watcher: Watcher, ours: str
) -> Sequence[GangView]:
    """Without those that another command takes out, or starts, by its claim on the router's host: it adds them again,
    and one that drains must get no requests. ours: the token of this command's claim, '' for none."""
    theirs = {name: holder for name, holder in claimed(router).items() if holder.token != ours}
    for view in gangs:
        if view.serves and (holder := theirs.get(view.name)):
            watcher.step(view.name, f"not added to the router: {holder.name} changes it with `{holder.command}`")
    return [view for view in gangs if view.name not in theirs]


def refuse_others_turn(operation: Operation, router: Router, gang: GangSpec) -> None:
    """Raises LockHeld where another command takes this gang out, starts or ends it."""
    again = "run the command again when that has ended"
    if holder := claimed(router).get(gang.name):
        raise LockHeld(f"{holder.name} changes it with `{holder.command}`", where=f"gang {gang.name}", fix=again)
    if told_to_end(operation.fleet, [gang]):
        raise LockHeld(f"`{DOWN}` ends it", where=f"gang {gang.name}", fix=again)


def would_mix(router: Router, serving: Sequence[GangView]) -> dict[str, DeployError]:
    """By its name, why a gang can't join others behind a router that does not look at models."""
    names = {view.name: names_of(view) for view in serving}
    if len({frozenset(its) for its in names.values()}) < 2 or router.looks_at_models():
        return {}
    behind = {worker.url for worker in router.workers()}
    first = next((view for view in serving if view.service_url in behind), serving[0])
    return {
        view.name: mixed_models(router.spec, view.name, {name: names[name] for name in (first.name, view.name)})
        for view in serving
        if {*names[view.name]} != {*names[first.name]} and view.service_url not in behind
    }


def mixed_models(spec: RouterSpec, gang: str, names: Serving) -> FindingsError:
    """Why a gang can't serve its model behind this router. names: of this one and of another, by gang"""
    served = "; ".join(f"{name}: {name_words(its)}" for name, its in names.items())
    return FindingsError(
        f"ROUTER-MODEL-MIXED: the router on {spec.node.name} is {words.SGLANG_ROUTER.name}, which does not look at the"
        f" model that a request names: gangs with different models ({served}) would answer for each other",
        where=f"gang {gang}",
        fix=f"install {words.SMG.name} with `l40s-deploy prepare --tags router_env`, then run {ANEW}, which takes its"
        " clients some seconds",
    )


class NamesTwoModels(FindingsError):
    """Why a gang is in the router without some of its aliases."""


def why_not_in(router: Router, view: GangView, serving: Sequence[GangView]) -> DeployError | None:
    """Have requests go to this gang; why that could not be done, or not by all of its names. serving: all that serve,
    or those of them that are not in the router"""
    aliases = router.spec.aliases.get(view.name, ())
    double = sorted({*aliases} & _names_of_others(router, view, serving)) if aliases else []
    if not view.service_url:
        why = next((words for words in view.remarks if DISAGREES in words), "where it serves is not known")
        fix = f"set l40s_address of its nodes, or look at that node: `l40s-deploy status {view.name}`"
        return NodeError(f"{why}; it was not added to the router", where=f"gang {view.name}", fix=fix)
    try:
        router.take_in(view.service_url, run_entry(view.name, view.run_id), () if double else aliases)
    except DeployError as failure:
        return failure
    return _two_models(view, double) if double else None


def _names_of_others(router: Router, view: GangView, serving: Iterable[GangView]) -> set[str]:
    """By what gangs that serve another model are asked for, those too that only the router knows."""
    ours, aliases = {*names_of(view)}, router.spec.aliases
    others = [names_of(other, aliases.get(other.name, ())) for other in serving if not ours & {*names_of(other)}]
    entries = [worker for worker in router.workers() if worker.url != view.service_url.rstrip("/")]
    others += [_names_in(entry) for entry in entries if ours.isdisjoint(model.name for model in entry.models)]
    return {name for names in others for name in names}


def _two_models(view: GangView, names: Sequence[str]) -> NamesTwoModels:
    return NamesTwoModels(
        f"{', '.join(names)} would name two models, {view.model} and another gang's; it is in the router by its model's"
        " name alone",
        where=f"gang {view.name}: l40s_aliases",
        fix="let each alias name one model, then run l40s-deploy router up",
    )


def take_in_serving(operation: Operation, router: Router, watcher: Watcher, *, ours: str = "") -> Serving:
    """Have requests go to every gang of the inventory that serves, one that came up without the router too.

    ours: as of `_not_changed_by_others`. Where they go now; why one could not be taken in is said.
    """
    serve = [view for view in operation.look() if view.serves]
    views, failures = _take_in_undisturbed(operation, router, serve, watcher, ours)
    say_failures(failures, watcher)
    return serving_of(router, serve, [view for view in views if view.name not in failures])


def serving_of(router: Router, known: Iterable[GangView], chosen: Sequence[GangView]) -> Serving:
    """What each of the chosen gangs is asked for, and by address the same of what the router sends requests to beside
    those that are known: gangs that this inventory does not have, or calls otherwise.

    Those are the names by which the router sends it requests, aliases too; where it does not tell, the gang's own.
    """
    told = {worker.url: _names_in(worker) for worker in router.workers() if worker.healthy}
    ours = {view.service_url.rstrip("/") for view in known}
    others = {url: names or UNKNOWN_NAMES for url, names in told.items() if url not in ours}
    return {**{view.name: told.get(view.service_url.rstrip("/")) or names_of(view) for view in chosen}, **others}


def _names_in(worker: Worker) -> Names:
    """By which the router sends it requests; () where it does not tell them."""
    names = tuple(name for model in worker.models for name in (model.name, *model.aliases))
    return () if UNKNOWN_MODEL in names else names


def stop_router(
    operation: Operation, *, command: str, now: bool = False, timeout_s: float = STOP_S
) -> tuple[StopResult, ...]:
    """Stop it; requests that run get up to 60 s. timeout_s: how long its end is waited for. Raises RunsElsewhere."""
    router = wanted_router(operation)
    refuse_elsewhere([router.view()], to_end=True)
    with GangLock(router.fleet, router.gang, command):
        return stop_gangs(router.fleet, [router.gang], now=now, ordered=True, timeout_s=timeout_s)


def would_start_router(operation: Operation) -> tuple[GangRehearsal, ...]:
    """What `start_router` would do. Raises InputError where the inventory has no router, and Unreachable."""
    router = wanted_router(operation)
    state = router.state()
    everybody_answers([state.view])
    gangs = operation.look()
    running = state.view.running
    then = state.view.plan_id if running else start_now(router, operation.inventory, gangs).plan_id
    behind = {worker.url for worker in state.workers}
    added = [view.name for view in gangs if view.serves and view.service_url not in behind]
    joining = f"{', '.join(added)} would be added" if added else "no gang would be added"
    what = "is running and would be left unchanged" if running else "would be started"
    return (would(state.view, then, f"{what}; {joining}"),)


def would_stop_router(operation: Operation) -> tuple[GangRehearsal, ...]:
    """What `stop_router` would do. Raises InputError where the inventory has no router."""
    router = wanted_router(operation)
    return would_stop(router.fleet, [router.gang], now=False)


def add_to_router(
    operation: Operation, views: Iterable[GangView], watcher: Watcher, *, command: str, ours: str = ""
) -> RouterState | None:
    """After an `up`: the router runs and knows the gangs that are ready. Nothing where there is no router.

    ours: as of `_not_changed_by_others`.
    """
    if operation.router is None or not any(view.service_healthy for view in views):
        return None
    watcher.step(ROUTER_GANG, "starting, and adding the gangs that became ready")
    return start_router(operation, watcher, command=command, ours=ours)


def rejoin(router: Router | None, views: Iterable[GangView], watcher: Watcher) -> None:
    """After a `restart`: add these gangs to the router, if one serves; a failure is only reported."""
    if router is None:
        return
    now = router.view()
    lost = next((node.error for node in now.nodes if node.error is not None), None)
    if lost is not None:
        say_failures({ROUTER_GANG: lost}, watcher)
    if now.serves:
        say_failures(take_in_all(router, views), watcher)


def leave_router(router: Router | None, view: GangView) -> None:
    """Have no new request go to this gang, where a router serves."""
    if router is not None and view.service_url and router.view().serves:
        router.take_out(view.service_url)


def say_failures(failures: Mapping[str, DeployError], watcher: Watcher) -> None:
    """What went wrong beside the work, by the gang's name."""
    for name, failure in failures.items():
        watcher.step(name, f"{failure.where}: {failure.what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """last:     by its name, of each gang that was taken out, the names for which no healthy one is left in the router
    changing: by its name, who changes all the others that serve what it does: one of them may be out now
    """

    last: Serving = field(default_factory=dict)
    changing: Mapping[str, LockHolder] = field(default_factory=dict)


def withdraw(
    operation: Operation, gangs: Iterable[str], announce: Callable[[Serving], None] = lambda _: None
) -> Withdrawn:
    """Before a `down`: no new request goes to these gangs. Nothing where there is no router or it does not run.

    announce: called with `Withdrawn.last` before any of them is taken out.
    Whoever changes other gangs is asked for last: a command that has its turn later sees the lock of this `down`.
    Raises Unreachable where the router's host can't be asked: its entries stay.
    """
    inventory = operation.inventory
    names = {gang.name for gang in chosen_gangs(inventory, tuple(gangs))}
    router = operation.router
    if router is None:
        return Withdrawn()
    now = router.view()
    everybody_answers([now])
    if not now.serves:
        return Withdrawn()
    views = operation.glance()
    seen = with_addresses(inventory, views, router.workers())
    serving = behind_router(router, seen)
    last = _lost_by(names, lost_names(names, serving), serving)
    announce(last)
    for view in seen:
        if view.name in names:
            router.take_out(view.service_url)
    unread = {view.name for view in views if not view.service_url}
    for view in seen:
        if view.name in names & unread:
            _let_run(router, view.service_url)
    return Withdrawn(last=last, changing=_changing_others(router, names, serving, last))


def _changing_others(
    router: Router, names: Collection[str], serving: Serving, last: Serving
) -> Mapping[str, LockHolder]:
    theirs = {name: holder for name, holder in claimed(router).items() if name in serving and name not in names}
    if not theirs:
        return {}
    lost = _lost_by(names, lost_names({*names, *theirs}, serving), serving)
    holder = next(iter(theirs.values()))
    return {name: holder for name in lost if name not in last}


def _lost_by(gangs: Collection[str], lost: Names, serving: Serving) -> Serving:
    """Of each of these gangs that has some, its names among those that are lost."""
    names = {gang: tuple(name for name in its if name in lost) for gang, its in serving.items() if gang in gangs}
    return {gang: its for gang, its in names.items() if its}


def with_addresses(inventory: Inventory, views: Sequence[GangView], entered: Iterable[Worker]) -> list[GangView]:
    """Those of which it is known where they serve, or may; entered: the router's workers."""
    specs = {gang.name: gang for gang in inventory.gangs}
    taken = {view.service_url.rstrip("/") for view in views}
    by_run = {worker.run: worker.url for worker in entered if worker.run and worker.url not in taken}

    def address(view: GangView) -> str:
        its_entry = by_run.get(run_entry(view.name, view.run_id), "")
        return view.service_url or _url_unread(specs[view.name], view) or its_entry

    return [replace(view, service_url=url) for view in views if (url := address(view))]


def _let_run(router: Router, url: str) -> None:
    """Wait until a gang that was taken out has no request any more, for DRAIN_S at most: nobody reads its leader, which
    drains where it is told to stop, so that its engine is asked from the router's host."""
    requests_end(router.fleet, router.spec.node.name, url, timeout_s=HEALTH_S)


def behind_router(router: Router, known: Sequence[GangView]) -> Serving:
    """Everybody whom the router counts as healthy, but for gangs whose own nodes say that they have ended: it looks at
    them every few seconds only. known: the inventory's gangs with their addresses."""
    healthy = {worker.url for worker in router.workers() if worker.healthy}
    lives = [view for view in known if view.state not in (GangState.FAILED, GangState.ABSENT)]
    return serving_of(router, known, [view for view in lives if view.service_url.rstrip("/") in healthy])


def is_entered(operation: Operation, name: str) -> bool:
    """Whether the router has an entry of this gang; False where none serves. Raises Unreachable where its host can't be
    asked."""
    router = operation.router
    if router is None:
        return False
    now = router.view()
    everybody_answers([now])
    if not now.serves:
        return False
    workers = router.workers()
    urls = {worker.url for worker in workers}
    views = with_addresses(operation.inventory, operation.glance(), workers)
    return any(view.name == name and view.service_url.rstrip("/") in urls for view in views)


def _url_unread(gang: GangSpec, view: GangView) -> str:
    """Where a gang may serve whose agents have lost their files, as the inventory states it; '' where it does not, and
    for other gangs."""
    if not any(isinstance(node.error, WithoutFiles) for node in view.nodes):
        return ""
    return gang.url or gang.leader.stated_url
