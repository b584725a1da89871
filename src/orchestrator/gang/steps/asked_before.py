"""What was asked for when the gangs of an inventory were started: what `plan --diff` plans again where nobody names a
model."""

from __future__ import annotations

from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.staging import newest_run
from orchestrator.gang.steps.up import asked_of
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Asked


def asked_before(operation: Operation, names: tuple[str, ...] = ()) -> Asked:
    """What these gangs, or all, were asked for alike; a gang that never ran is left out.

    Raises InputError where none ever ran, where they were asked for different things, and as `asked_of`; the failure of
    a node that does not answer.
    """
    fleet, gangs = operation.fleet, chosen_gangs(operation.inventory, names)
    ran = operation.as_they_run(gang for gang in gangs if newest_run(fleet, gang) is not None)
    told = collected((asked_of(fleet, gang), gang.name) for gang in ran)
    if not told:
        raise InputError(
            "no gang was ever started here, and no model was given",
            where="command line",
            fix="add --model NAME; run `l40s-deploy models` for the list",
        )
    if len(told) > 1:
        what = "; ".join(f"{', '.join(names)}: {asked.model}" for asked, names in told.items())
        first = next(iter(told.values()))[0]
        raise InputError(
            f"the gangs were not asked for the same ({what})",
            where="command line",
            fix=f"l40s-deploy plan --diff --gang {first}",
        )
    return next(iter(told))
