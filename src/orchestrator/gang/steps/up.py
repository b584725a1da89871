"""`up`: starts the gangs that are not running, and changes over those that serve another plan, one after another.

The first one that does not come up on the new plan returns to its previous plan; the others keep serving unchanged.
What an interrupted command had begun is finished. A gang planned again on fewer of its nodes, and on all of them again,
is an `up` of what its nodes keep of the operator's wishes.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from orchestrator.doctor.steps.doctor import forbidding
from orchestrator.gang import actions
from orchestrator.gang.agreement import DISAGREES, most_say
from orchestrator.gang.claims import Way
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.serving import Serving, name_words, names_of
from orchestrator.gang.steps.changes import compare
from orchestrator.gang.steps.checks import refuse_on_nodes
from orchestrator.gang.steps.down import DownRequest, down
from orchestrator.gang.steps.operation import AskedOperation, Operation
from orchestrator.gang.steps.raising import Watcher, raise_all
from orchestrator.gang.steps.restart import forget_begun, go_on, resume
from orchestrator.gang.steps.restart_sequence import GangRestart, RestartRequest, RestartSequence, RestartVerb
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import KeyRefused, Router
from orchestrator.gang.steps.router.mixing import forget_other_models, refuse_mixed_models
from orchestrator.gang.steps.router.routing import add_to_router, say_failures, serving_of
from orchestrator.gang.steps.staging import Staged, newest_run, staged_plan
from orchestrator.gang.steps.status.reports import as_it_runs, begun_on, interrupted
from orchestrator.gang.steps.up_operation import Gated, GateJudge, UpOperation, UpRequest, UpResult, prepared, starts_of
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import reported_profile, reported_stack
from orchestrator.model.advice import start_with_a_model
from orchestrator.model.chosen import chosen_gangs, without
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.planning.plan_file import GangDiff, summary
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, FindingsError, GangFailed, InputError, VerificationDiffers
from orchestrator.protocol.staging import Asked, StagingRequest
from orchestrator.records.plans import recorded_plan
from orchestrator.remote.fleet import Fleet

CHANGE = RestartVerb(what=OperationKind.CHANGE, done="changed", rolls=True, returns="its previous plan")


def up(operation: AskedOperation, request: UpRequest, watcher: Watcher) -> UpResult:
    """Have every chosen gang serve the plan, behind the router where there is one.

    Raises Unreachable, LockHeld and FindingsError before anything is started; InputError where changing a gang over
    needs `replace`; NodeError where a node's checks refuse; GangFailed with the one cause and with what the gangs run
    afterwards. KeyboardInterrupt detaches; Undone where a gang's ranks had not started.
    """
    done, begun = _serve(_judged_anew(operation, request, watcher), request, watcher)
    if request.strict:
        refuse_transport(operation, done.views, command=request.command)
    try:
        front = add_to_router(operation, done.views, watcher, command=request.command, ours=request.turn)
        done = replace(done, router_url=front.url if front is not None else "")
        forget_begun(operation, [left.gang for left in begun], request.command)
        return _go_on(operation, done, begun, request, watcher)
    except DeployError as failure:
        return replace(done, failure=failure)


def _judged_anew(operation: AskedOperation, request: UpRequest, watcher: Watcher) -> AskedOperation:
    """Where an earlier gate came to no verdict, its gang is on the plan before again: what this one compares with."""
    gangs = chosen_gangs(operation.inventory, request.plan.gangs)
    begun = interrupted(operation.fleet, gangs) if request.gate is not None else ()
    left = tuple(each.gang for each in begun if each.unjudged and each.turning)
    if not left:
        return operation
    resume(operation, left, watcher, command=request.command, timeout_s=request.timeout_s)
    return operation.asked()


def _taken_as_they_are(here: UpOperation, begun: Sequence[GangOperation], rise: Sequence[Staged]) -> None:
    """Without --gate the plan on which one came to no verdict is what its operator wants, where it runs or starts."""
    rising = {start.gang.name for start in rise}
    for left in begun:
        if left.unjudged and left.gang in rising:
            here.locks[left.gang].begin(replace(left, unjudged=False))


def _serve(operation: AskedOperation, request: UpRequest, watcher: Watcher) -> tuple[UpResult, Sequence[GangOperation]]:
    """With what an interrupted command had begun on these gangs.

    Where it is another command's turn to change a gang behind the router, it waits for its own without the locks, so
    that these gangs can be stopped and recovered meanwhile, and then looks and plans anew.
    """
    begin = time.monotonic()
    risen: frozenset[str] = frozenset()
    with _turn(operation, request, watcher) as turn:
        while True:
            with prepared(operation, request, watcher) as here:
                begun = begun_on(here.fleet, here.gangs)
                rise, turns = _change(here)
                refuse_on_nodes(here.fleet, [turn.plan for turn in turns])
                refuse_mixed_models(here.router, (*here.views, *here.others), _plans(rise, turns))
                _taken_as_they_are(here, begun, rise)
                forget_other_models(here.router, here.views, {start.gang.name: start for start in rise})
                views, started = _rise(here, rise, turn)
                risen |= started
                turn.gangs = [turn.name for turn in turns]
                if not turns or turn.take():
                    views += _change_over(here, views, turns, turn)
                    seen = {view.name: view for view in views}
                    done = UpResult(
                        plan=here.plan,
                        views=tuple(seen[gang.name] for gang in here.gangs),
                        ready_before=frozenset(start.gang.name for start in rise) - risen,
                        seconds=time.monotonic() - begin,
                        changed=tuple(turn.name for turn in turns),
                    )
                    return done, begun
            operation.fleet.let_go()
            turn.wait()
            operation = operation.asked()  # what the nodes had said before the wait is old


def _turn(operation: Operation, request: UpRequest, watcher: Watcher) -> RouterTurn:
    return RouterTurn(
        operation=operation,
        gangs=(),
        command=request.command,
        watcher=watcher,
        patience_s=request.timeout_s if request.turn_s is None else request.turn_s,
        way=Way.AT_ONCE if request.all_at_once else Way.WAITS,
    )


def _rise(here: UpOperation, rise: Sequence[Staged], turn: RouterTurn) -> tuple[tuple[GangView, ...], frozenset[str]]:
    """Start the gangs whose start interrupts nothing; as they were seen last, and the names of those that did not
    serve before."""
    rising = [start.gang.name for start in rise]
    _leave_old_addresses(here, rising, rising=rising)
    serves = {view.name for view in here.views if view.serves}
    turn.gangs = rising
    if set(rising) - serves:
        turn.announce()
    views = raise_all(
        here.fleet,
        rise,
        here.watcher,
        timeout_s=here.request.timeout_s,
        undo_on_interrupt=here.request.undo_on_interrupt,
        before_go=partial(_one_by_one, here) if here.request.before_go else None,
    )
    served = {view.run_id for view in here.views if view.serves}
    return views, frozenset(view.name for view in views if view.run_id not in served)


def _change_over(
    here: UpOperation, risen: Sequence[GangView], turns: Sequence[GangRestart], turn: RouterTurn
) -> tuple[GangView, ...]:
    """Change the gangs that serve another plan, one after the other. risen: those that were started before."""
    if not turns:
        return ()
    request, watcher = here.request, here.watcher
    _leave_old_addresses(here, [turn.name for turn in turns])
    try:
        add_to_router(here, (*here.views, *risen), watcher, command=request.command, ours=turn.token)
    except KeyRefused as refused:  # it is given the new key now, before the gangs that have their entry
        say_failures({"router": refused}, watcher)
    router = here.serving_router()
    behind = {worker.url for worker in router.workers() if worker.healthy} if router is not None else set()
    turns = sorted(turns, key=lambda turn: turn.url in behind)
    judge = _gate(here, turns[0])
    sequence = _sequence(here, router, judge, turn)
    try:
        return sequence.run(turns, here.locks)
    except DeployError as failure:
        _tell(judge, sequence, failure)
        raise


def _sequence(
    here: UpOperation, router: Router | None, judges: Mapping[str, GateJudge], turn: RouterTurn
) -> RestartSequence:
    """Has gangs changed over. router: where one serves; turn: behind it, taken"""
    request = here.request
    return RestartSequence(
        fleet=here.fleet,
        router=router,
        front=here.router,
        watcher=here.watcher,
        request=RestartRequest(
            verb=CHANGE,
            command=request.command,
            timeout_s=request.timeout_s,
            hung_after_s=request.hung_after_s,
            accept=request.accept,
        ),
        undo_on_interrupt=request.undo_on_interrupt,
        before_go=partial(_one_by_one, here) if request.before_go else None,
        check=lambda batch: refuse_on_nodes(here.fleet, [member.plan for member in batch]),
        accept=partial(_accept, request.strict, judges, here.watcher),
        our_turn=turn.still_ours,
        judged=judges,
    )


def _one_by_one(here: UpOperation, gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
    for before in here.request.before_go:
        before.check(here, gang, requests)


def _go_on(
    operation: Operation, done: UpResult, begun: Sequence[GangOperation], request: UpRequest, watcher: Watcher
) -> UpResult:
    """Restart what an interrupted rolling restart had not reached; gangs that this command has started have served it
    as well."""
    runs = {view.name: view.run_id for view in done.views if view.name in done.ready_before}
    waiting = [left for left in begun if left.what is not OperationKind.CHANGE and runs.get(left.gang) == left.was_run]
    views, words = go_on(operation, waiting, request.command, watcher)
    for sentence in words:
        watcher.step("not done", sentence)
    now = {view.name: view for view in (*done.views, *views)}
    return replace(
        done,
        views=tuple(now[view.name] for view in done.views),
        ready_before=done.ready_before - {view.name for view in views},
    )


def rehearse(operation: AskedOperation, request: UpRequest, watcher: Watcher) -> Plan:
    """The plan that `up` would carry out. Changes nothing; raises what `up` would be refused for before it starts or
    stops anything."""
    with prepared(operation, request, watcher, locked=False) as here:
        rise, turns = _change(here)
        absent = {view.name for view in here.views if not view.running}
        plans = [start for start in rise if start.gang.name in absent]
        refuse_on_nodes(here.fleet, [*plans, *(turn.plan for turn in turns)])
        refuse_mixed_models(here.router, (*here.views, *here.others), _plans(rise, turns))
        return here.plan


def _plans(rise: Sequence[Staged], turns: Sequence[GangRestart]) -> dict[str, Staged]:
    """What these gangs are about to serve."""
    return {start.gang.name: start for start in (*rise, *(turn.plan for turn in turns))}


def refuse_transport(operation: Operation, views: Sequence[GangView], *, command: str) -> None:
    """For --strict: stop every gang whose traffic does not travel as planned and which is slower for it, and raise
    FindingsError with the first; quiet where there is none."""
    wrong = {view.name: refused for view in views if (refused := refusal(view))}
    if wrong:
        down(operation, DownRequest(gangs=tuple(wrong), now=True, command=command))
        raise next(iter(wrong.values()))


def refusal(view: GangView) -> FindingsError | None:
    """The first finding of such a gang that --strict forbids, in words that say that it was stopped; None for none."""
    first = next(iter(forbidding(view.transport, strict=True)), None)
    if first is None:
        return None
    return FindingsError(
        f"{first.id}: {first.title}. {first.effect}; the gang was stopped because of --strict",
        where=f"gang {view.name}: {first.node}",
        fix=first.fix,
    )


def _tell(judges: Mapping[str, GateJudge], sequence: RestartSequence, failure: DeployError) -> None:
    """Every run that a gate was to judge has its verdict, and its page stands below what went wrong. Raises
    VerificationDiffers where a plan did not start and the old one is back: it has not passed."""
    for name, run_id in sequence.refused.items():
        page = judges[name].refused(run_id, failure) if name in judges else ""
        failure.what += f"\n    {page}" if page else ""
    if isinstance(failure, GangFailed) and judges.keys() & sequence.returned:
        raise VerificationDiffers(failure.what, where=failure.where, fix=failure.fix) from failure


def _gate(here: UpOperation, first: GangRestart) -> dict[str, GateJudge]:
    """What judges the first gang, by its name; {} without --gate. Raises InputError where there is nothing to compare
    with, or to return to."""
    gate = here.request.gate
    if gate is None:
        return {}
    why = ""
    if first.before is None:
        why = "its nodes have no common plan to return to"
    elif not first.view.serves:
        why = f"it is {first.view.state.value}, so that there are no answers to compare with"
    elif first.plan.model != first.view.model:
        why = f"it serves {first.view.model}, and another model answers otherwise"
    if why:
        fix = "leave --gate out"
        raise InputError(f"--gate can't judge the change: {why}", where=f"gang {first.name}", fix=fix)
    gangs = [gang for gang in here.gangs if gang.name == first.name]
    (diff,) = compare(here.fleet, gangs, here.plan, [first.view])
    gated = Gated(here=here, plan=first.plan, old=first.view.plan_id, changes=diff.changes)
    return {first.name: gate.before(gated, here.watcher)}


def _accept(
    strict: bool,
    judges: Mapping[str, GateJudge],
    watcher: Watcher,
    views: Sequence[GangView],
) -> None:
    for view in views:
        if strict and (refused := refusal(view)):
            raise refused
        if judge := judges.get(view.name):
            judge(view, watcher)


def _leave_old_addresses(here: UpOperation, gangs: Collection[str], *, rising: Collection[str] = ()) -> None:
    """Where some gang's newest run had another leader than the plan, or nodes that are left out now. gangs: whose turn
    it is; another one that serves goes on."""
    leaders = {gang.name: gang.leader.name for gang in here.gangs}
    moved = any(view.members and view.members[0] != leaders[view.name] for view in here.views)
    if here.request.plan.without or moved:
        plan = replace(here.plan, gangs=tuple(gang_plan for gang_plan in here.plan.gangs if gang_plan.name in gangs))
        leave(replace(here, plan=plan), rising=rising)


def _of_plan(plan_id: str, views: Sequence[GangView]) -> list[str]:
    return [view.name for view in views if view.plan_id == plan_id]


def _change(here: UpOperation) -> tuple[list[Staged], list[GangRestart]]:
    """The gangs whose start interrupts nothing, and those that are changed over; raises InputError where that needs
    `replace`."""
    views, plan_id = {view.name: view for view in here.views}, here.plan.plan_id
    diffs = _diffs(here)
    same = {name: diff.running for name, diff in diffs.items() if not diff.changes}
    wanted = {*same, *_of_plan(plan_id, here.views)}
    starts = {start.gang.name: start for start in starts_of(here.gangs, here.plan, here.request, running=same)}
    aliases = here.router.spec.aliases if here.router is not None else {}
    planned = {name: names_of(start, aliases.get(name, ())) for name, start in starts.items()}
    schedule = actions.change_schedule(here.views, wanted, serving=_serving(here, wanted), planned=planned)
    turns = [
        GangRestart(gang=here.manned[name], view=views[name], before=_previous(here, views[name]), plan=starts[name])
        for name in schedule.turns
    ]
    for turn in turns:
        _announce(here, turn, schedule, diffs)
    return [start for name, start in starts.items() if name in schedule.rise], turns


def _announce(
    here: UpOperation, turn: GangRestart, schedule: actions.ChangeSchedule, diffs: Mapping[str, GangDiff]
) -> None:
    """Say what clients will notice of this change; raises InputError where that needs `replace`."""
    if reason := _reason(here.inventory, turn, schedule):
        if not here.request.replace:
            raise _refused(turn, diffs[turn.name], here.plan.plan_id, f"{reason}: {turn.downtime()}")
        here.watcher.step(turn.name, turn.downtime())
    if lost := schedule.last.get(turn.name):
        words = f"no gang serves {name_words(lost)} once it has changed: requests for it fail until one is started"
        here.watcher.step(turn.name, words)
    if partly := schedule.partly.get(turn.name):
        words = f"no other gang serves {name_words(partly)} meanwhile: requests for it fail until it is back"
        here.watcher.step(turn.name, words)


def _serving(here: UpOperation, wanted: Collection[str]) -> Serving:
    """What every gang behind the same router is asked for now. Its word counts where one that serves is changed."""
    known = [view for view in (*here.views, *here.others) if view.serves]
    changes = any(view.running and view.name not in wanted for view in here.views)
    router = here.serving_router() if changes else None
    return serving_of(router, known, known) if router is not None else {view.name: names_of(view) for view in known}


def _diffs(here: UpOperation) -> dict[str, GangDiff]:
    """What the plan changes on each gang that runs a plan of another id."""
    other = {view.name for view in here.views if view.running and view.plan_id != here.plan.plan_id}
    gangs = [gang for gang in here.gangs if gang.name in other]
    return {diff.name: diff for diff in compare(here.fleet, gangs, here.plan, here.views)}


def _previous(here: UpOperation, view: GangView) -> Staged | None:
    try:
        return staged_plan(here.fleet, as_it_runs(here.manned[view.name], view))
    except InputError:
        return None


def _reason(inventory: Inventory, turn: GangRestart, schedule: actions.ChangeSchedule) -> str:
    """Why changing this gang over is more than an operator may expect of `up`; '' where it is not."""
    lost = schedule.last.get(turn.name, ())
    last = f"; no gang serves {name_words(lost)} from then on" if lost else ""
    if turn.plan.model != turn.view.model:  # meanwhile, two models would answer at one address
        return f"the new plan serves another model than {turn.view.model}, which this address serves now{last}"
    if gone := [name for name in turn.view.served if name not in names_of(turn.plan)]:
        return f"the new plan does not answer to {name_words(gone)}, which this address does now{last}"
    if turn.name in schedule.busy:
        return "the gang is still starting"
    if alone := schedule.alone.get(turn.name):
        return f"no other gang would serve {name_words(alone)} in the meantime"
    if inventory.router is None:
        return "no router sends its requests to the other gangs in the meantime"
    return ""


def _refused(turn: GangRestart, diff: GangDiff, plan_id: str, reason: str) -> InputError:
    return InputError(
        f"this gang runs another plan: {diff.running} ({turn.view.model}) is {turn.view.state.value}; "
        f"plan {plan_id} changes {summary(diff.changes)}. {reason}",
        where=f"gang {turn.name}",
        fix="see all changes with `l40s-deploy plan --diff` and the same options. --replace stops the gang and starts"
        " it with the new plan; if it does not come up, the old plan is restored",
    )


def leave(here: UpOperation, *, rising: Collection[str] = ()) -> None:
    """Take the addresses of nodes that are left out out of the router, and say where each gang of the plan that another
    node leads now is served.

    rising: gangs that serve nowhere now, so that the address of the leader that they had is out as well; one that
    serves is taken out in its turn. What the router can't be told is only said: the gang serves without it.
    """
    for now in here.plan.gangs:
        (gang,) = (member for member in here.gangs if member.name == now.name)
        was = newest_run(here.fleet, gang)
        if was is None:
            continue
        leads = now.nodes[0].name
        moved = was.leader_name != leads
        gone = {name for name in was.members if name in here.request.plan.without}
        gone |= {was.leader_name} if moved and gang.name in rising else set()
        if gone:
            _take_out(here, gang, was, gone)
        if moved:
            advice = "" if here.inventory.router is not None else "; no router: tell your clients"
            here.watcher.step(
                gang.name,
                f"{leads} leads it instead of {was.leader_name}; its address is now {now.service_url}{advice}",
            )


def _place(url: str) -> tuple[str | None, int | None]:
    at = urlsplit(url)
    return at.hostname, at.port


def _urls_of_others(here: UpOperation, gang: GangSpec) -> set[str]:
    """Where the other gangs serve: these stay in the router, whatever this gang's nodes say of their addresses."""
    others = [other for other in here.inventory.gangs if other.name != gang.name]
    stated = {node.stated_url for other in others for node in other.machines}
    return stated | {view.service_url for view in (*here.views, *here.others) if view.name != gang.name}


def _take_out(here: UpOperation, gang: GangSpec, was: StagingRequest, gone: Collection[str]) -> None:
    served = {(address, gang.leader.ports.http) for address, name in was.addresses.items() if name in gone}
    try:
        router = here.serving_router()
        if router is None:
            return
        theirs = _urls_of_others(here, gang)
        for worker in router.workers():
            if _place(worker.url) in served and worker.url not in theirs:
                here.watcher.step(gang.name, f"removing {worker.url} from the router")
                router.take_out(worker.url)
    except DeployError as failure:
        say_failures({gang.name: failure}, here.watcher)


def asked_of(fleet: Fleet, gang: GangSpec) -> Asked:
    """What the operator asked of this gang. gang: on the nodes of its newest run that can be asked.

    That is what all of them say alike, and what this controller has recorded where it started that plan: what one node
    says is planned for no other. Raises InputError where they differ, where they name a model or stack that is not
    known here, where an older release started it, or nobody did.
    """
    if not gang.nodes:
        raise InputError(
            "none of the remaining nodes has run this gang, so its model and options are unknown",
            where=f"gang {gang.name}",
            fix=f"once, {start_with_a_model(gang.name, '--without')}",
        )
    requests = staged_plan(fleet, gang, whole=False).requests
    known = _of_one_run(requests)
    asked = most_say((request.asked for request in known.values()), None)
    if all(request.asked is None for request in known.values()):
        raise InputError(
            "an older l40s-deploy started this gang, and its nodes did not record its model and options",
            where=f"gang {gang.name}",
            fix=f"once, {start_with_a_model(gang.name, '--replace')}, and --without for a node that does not answer",
        )
    return _agreed(gang, known, asked)


def _agreed(gang: GangSpec, known: Mapping[str, StagingRequest], asked: Asked | None) -> Asked:
    """What most say was asked, where all do, and this machine's record too. Raises InputError."""
    odd = [name for name, request in known.items() if request.asked != asked]
    if odd or asked is None:
        who = odd[0] if odd else gang.leader.name
        raise _asked_otherwise(gang, who, "the other nodes of its run")
    kept = recorded_plan(gang.name, most_say((request.plan_id for request in known.values()), ""))
    if kept is None or kept.asked is None:
        _refuse_unknown_names(gang, asked)
    elif Asked.read(kept.asked) != asked:
        raise _asked_otherwise(gang, ", ".join(known), "this machine's record of its start")
    return asked


def _of_one_run(requests: Mapping[str, StagingRequest]) -> Mapping[str, StagingRequest]:
    """Those of the run that most of them have; all of them where no run has more than half."""
    run_id = most_say((request.run_id for request in requests.values()), "")
    same = {name: request for name, request in requests.items() if request.run_id == run_id}
    return same if 2 * len(same) > len(requests) else requests


def _asked_otherwise(gang: GangSpec, who: str, whom: str) -> InputError:
    return InputError(
        f"{DISAGREES}: {who} has another model, or other options that the gang was started with, than {whom}; it is not"
        " planned again by that",
        where=f"gang {gang.name}",
        fix=f"once, as it should be, {start_with_a_model(gang.name, '--replace')}",
    )


def _refuse_unknown_names(gang: GangSpec, asked: Asked) -> None:
    """Without a record of ours, a model or a stack is a name that is known here, and never a path."""
    try:
        reported_profile(asked.model)
        if asked.stack is not None:
            reported_stack(asked.stack)
    except InputError as unknown:
        unknown.where = f"gang {gang.name}"
        unknown.fix += f", or once {start_with_a_model(gang.name, '--replace')}"
        raise


def planned_again(
    inventory: Inventory, gang: GangSpec, asked: Asked, left_out: Sequence[str] = ()
) -> tuple[Inventory, PlanRequest]:
    """What to plan, of which inventory, to have the gang serve as was asked for: on all of its nodes, or without these:
    with spares in their places, else with a layout that fits the others."""
    left = without(inventory, left_out)
    short = any(other.short for other in left.gangs if other.name == gang.name)
    again = asked.on_other_nodes() if short else asked
    return left, PlanRequest.of(again, gangs=(gang.name,), without=tuple(left_out))


def words_to_return(gang: GangSpec, asked: Asked) -> str:
    """The command that returns the gang to all of its nodes."""
    degrees = (("--tp", asked.tp), ("--pp", asked.pp), ("--ep", asked.ep), ("--attn-dp", asked.attn_dp))
    options = [("--model", asked.model), ("--stack", asked.stack), ("--layout", asked.layout)]
    options += [(flag, str(degree)) for flag, degree in degrees if degree]
    words = [word for flag, value in options if value for word in (flag, value)]
    extra = ["--", *asked.extra_args] if asked.extra_args else []
    return shlex.join(["l40s-deploy", "up", *words, "--gang", gang.name, "--replace", *extra])
