"""A gang planned again on fewer of its nodes than it should have, and on all of them again.

Both are an `up` of what its nodes keep of the operator's wishes: with its locks, its checks and its rollback.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.gang.steps.raising import WISHES
from orchestrator.gang.steps.replay import staged_plan
from orchestrator.model.chosen import without
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.staging import Asked
from orchestrator.remote.fleet import Fleet


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


def planned_again(
    inventory: Inventory, gang: GangSpec, asked: Asked, left_out: Sequence[str] = ()
) -> tuple[Inventory, PlanRequest]:
    """What to plan, of which inventory, to have the gang serve as was asked for: on all of its nodes, or without these:
    with spares in their places, else with a layout that fits the others."""
    left = without(inventory, left_out)
    again = asked if not any(one.short for one in left.gangs if one.name == gang.name) else replace(
        asked, tp=None, pp=None, ep=None, attn_dp=None, layout="")  # fmt: skip
    words = {name: getattr(again, name) for name in WISHES}
    return left, PlanRequest(**words, gangs=(gang.name,), without=tuple(left_out))


def words_to_return(gang: GangSpec, asked: Asked) -> str:
    """The command that returns the gang to all of its nodes."""
    degrees = (("--tp", asked.tp), ("--pp", asked.pp), ("--ep", asked.ep), ("--attn-dp", asked.attn_dp))
    options = [("--model", asked.model), ("--stack", asked.stack), ("--layout", asked.layout)]
    options += [(flag, str(degree)) for flag, degree in degrees if degree]
    words = [word for flag, value in options if value for word in (flag, value)]
    extra = ["--", *asked.extra_args] if asked.extra_args else []
    return shlex.join(["l40s-deploy", "up", *words, "--gang", gang.name, "--replace", *extra])
