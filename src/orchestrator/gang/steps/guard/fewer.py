"""A gang planned again on fewer of its nodes than it should have, and on all of them again.

Both are an `up` of what its nodes keep of the operator's wishes: with its locks, its checks and its rollback.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.gang.steps.raising import UpRequest, UpResult, Watcher
from orchestrator.gang.steps.replay import staged_plan
from orchestrator.gang.steps.up import up
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.survivors import without
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.staging import Asked
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTerms:
    """What a start on other nodes has of the command that wants it. timeout_s: for the start."""

    command: str
    why: str
    timeout_s: float = 3600.0
    hung_after_s: float | None = None


def asked_of(fleet: Fleet, gang: GangSpec) -> Asked:
    """What the operator asked of this gang. gang: on the nodes of its newest run that can be asked.

    Raises InputError where an older release started it, or nobody did.
    """
    if not gang.nodes:
        raise InputError(
            "none of the remaining nodes has run this gang, so its model and options are unknown",
            where=f"gang {gang.name}",
            fix=f"run once: l40s-deploy up --model NAME --gang {gang.name} --without NODE",
        )
    requests = staged_plan(fleet, gang, whole=False).requests
    asked = next((request.asked for request in requests.values() if request.asked is not None), None)
    if asked is None:
        raise InputError(
            "an older l40s-deploy started this gang, and its nodes did not record its model and options",
            where=f"gang {gang.name}",
            fix=f"run once: l40s-deploy up --model NAME --gang {gang.name} --replace, with --without NODE for a"
            " node that does not answer",
        )
    return asked


def go_on(
    inventory: Inventory, gang: GangSpec, asked: Asked, left_out: Sequence[str], terms: StartTerms, watcher: Watcher
) -> UpResult:
    """Have the gang serve without these nodes, behind the router: as it was asked for where spares take their places,
    else with a layout that fits the others.

    Raises what `up` raises: InputError with the arithmetic where no layout fits the nodes that are left.
    """
    left = without(inventory, left_out)
    fewer = any(one.short for one in left.gangs if one.name == gang.name)
    plan = replace(_as_asked(gang, asked), without=tuple(left_out))
    if fewer:
        plan = replace(plan, tp=None, pp=None, ep=None, attn_dp=None, layout="")
    return _up(left, plan, asked, terms, watcher)


def return_to_all(inventory: Inventory, gang: GangSpec, asked: Asked, terms: StartTerms, watcher: Watcher) -> UpResult:
    """Have the gang serve on all of its nodes again, with what was asked for then; where it does not come up so, it
    goes on as it was. Raises what `up` raises."""
    return _up(inventory, _as_asked(gang, asked), asked, terms, watcher)


def _as_asked(gang: GangSpec, asked: Asked) -> PlanRequest:
    return PlanRequest(
        model=asked.model,
        stack=asked.stack,
        tp=asked.tp,
        pp=asked.pp,
        ep=asked.ep,
        attn_dp=asked.attn_dp,
        layout=asked.layout,
        extra_args=asked.extra_args,
        gangs=(gang.name,),
    )


def _up(inventory: Inventory, plan: PlanRequest, asked: Asked, terms: StartTerms, watcher: Watcher) -> UpResult:
    request = UpRequest(
        plan=plan,
        command=terms.command,
        why=terms.why,
        timeout_s=terms.timeout_s,
        hung_after_s=terms.hung_after_s,
        replace=True,
        asked=asked,
    )
    outcome = up(inventory, request, watcher)
    if outcome.failure is not None:
        raise outcome.failure
    return outcome


def words_to_return(gang: GangSpec, asked: Asked) -> str:
    """The command that returns the gang to all of its nodes."""
    degrees = (("--tp", asked.tp), ("--pp", asked.pp), ("--ep", asked.ep), ("--attn-dp", asked.attn_dp))
    options = [("--model", asked.model), ("--stack", asked.stack), ("--layout", asked.layout)]
    options += [(flag, str(degree)) for flag, degree in degrees if degree]
    words = [word for flag, value in options if value for word in (flag, value)]
    extra = ["--", *asked.extra_args] if asked.extra_args else []
    return shlex.join(["l40s-deploy", "up", *words, "--gang", gang.name, "--replace", *extra])
