"""`rollback`: each gang goes back to the plan that it had before the one that it has."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.gang.history import plan_before
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.restart_sequence import RestartVerb
from orchestrator.gang.steps.staging import Staged, staged_plan
from orchestrator.gang.steps.status.history import history
from orchestrator.model.advice import start_with_a_model
from orchestrator.model.chosen import same_nodes
from orchestrator.protocol.errors import InputError


def plans_before(operation: Operation, running: Sequence[Staged]) -> list[Staged]:
    """As their nodes have kept it, of each of these gangs. Raises InputError where they have kept no other plan."""
    specs = {gang.name: gang for gang in operation.inventory.gangs}
    runs = {past.gang: past.runs for past in history(operation, tuple(now.gang.name for now in running))}
    turns = []
    for now in running:
        gang = now.gang if same_nodes(now.gang, specs[now.gang.name]) else specs[now.gang.name]
        before = plan_before(runs[gang.name], now.plan_id)
        if before is None:
            raise InputError(
                f"its nodes have no recorded run of a plan other than {now.plan_id} that came up",
                where=f"gang {gang.name}",
                fix=f"see the recorded runs with `l40s-deploy history`; or plan again: {start_with_a_model(gang.name)}",
            )
        turns.append(staged_plan(operation.fleet, gang, run_id=before.run_id))
    return turns


ROLLBACK = RestartVerb(what=OperationKind.CHANGE, done="rolled back", before=plans_before, returns="plan")
