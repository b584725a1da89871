"""Whether a gang of the inventory runs as one engine or as replicas, by its nodes' reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.gang.steps.status.reports import views_of
from orchestrator.model.chosen import concerned, replicas_of, split, with_spares
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import ReportAnswer


@dataclass(frozen=True, slots=True, order=True)
class LastRun:
    """The last run of a gang on one node. run_id: begins with the time of its start, so that it sorts by time."""

    alive: bool
    run_id: str
    gang: str


def last_run(gang: GangSpec, runs: Iterable[LastRun]) -> LastRun | None:
    """The last run of the gang or of one of its replicas; a live run comes before an ended one."""
    names = {gang.name, *(replica.name for replica in replicas_of(gang))}
    return max((run for run in runs if run.gang in names), default=None)


def stands_as_replicas(gang: GangSpec, runs: Iterable[LastRun]) -> bool:
    """Whether its replicas were started last. The only replica of a gang of one node is the gang itself."""
    last = last_run(gang, runs)
    return last is not None and last.gang != gang.name


def undecided(inventory: Inventory) -> tuple[GangSpec, ...]:
    """The gangs of which only their nodes can tell how they stand: those with several nodes, or a spare."""
    return tuple(gang for gang in inventory.gangs if len(gang.machines) > 1)


def as_standing(inventory: Inventory, answers: PerNode[ReportAnswer]) -> Inventory:
    """The inventory with the gangs that were last started with `up --replicas` as their replicas, and with spares that
    have a part in a gang's run among its nodes. answers: of the nodes of `undecided`"""
    runs = _runs(answers.values.values())
    seen = views_of([gang for gang in inventory.gangs if gang.spares], answers.values, answers.failures)
    stand_ins = {view.name: view.stand_ins for view in seen}
    gangs = tuple(with_spares(gang, stand_ins[gang.name]) if gang.spares else gang for gang in inventory.gangs)
    as_replicas = [gang.name for gang in inventory.gangs if stands_as_replicas(gang, runs)]
    return split(replace(inventory, gangs=gangs), as_replicas)


def standing_gangs(gangs: Iterable[GangSpec], answers: Iterable[ReportAnswer]) -> tuple[GangSpec, ...]:
    """These gangs, or their replicas, by what their nodes have answered of all that they know."""
    runs = _runs(answers)
    return tuple(
        member for gang in gangs for member in (replicas_of(gang) if stands_as_replicas(gang, runs) else (gang,))
    )


def as_replicas(inventory: Inventory, names: Collection[str]) -> Inventory:
    """The inventory with the gangs of these names (none: all) as replicas, whatever runs now."""
    return split(inventory, [gang.name for gang in inventory.gangs if concerned(gang, names)])


def to_start(
    inventory: Inventory, answers: PerNode[ReportAnswer], names: Collection[str], *, replicas: bool
) -> Inventory:
    """The inventory as a start means it: the gangs of these names (none: all) as replicas or as one engine each, the
    others as they stand. answers: of the nodes of `undecided`

    Raises InputError where one of them runs the other way.
    """
    several = undecided(inventory)
    runs = _runs(answers.values.values())
    chosen = [gang for gang in several if concerned(gang, names)]
    for gang in chosen:
        last = last_run(gang, runs)
        if last is not None and last.alive and (last.gang != gang.name) is not replicas:
            raise _the_other_way(gang, replicas=replicas)
    others = [gang.name for gang in several if gang not in chosen and stands_as_replicas(gang, runs)]
    return split(inventory, [*others, *(gang.name for gang in chosen if replicas)])


def _the_other_way(gang: GangSpec, *, replicas: bool) -> InputError:
    runs = f"one engine on {len(gang.nodes)} nodes" if replicas else "replicas, one a node"
    fix = f"stop it first: `l40s-deploy down {gang.name}`"
    return InputError(
        f"this gang runs as {runs}, and --replicas was {'' if replicas else 'not '}given",
        where=f"gang {gang.name}",
        fix=fix if replicas else f"{fix}, or add --replicas to keep its replicas",
    )


def _runs(answers: Iterable[ReportAnswer]) -> tuple[LastRun, ...]:
    return tuple(run for answer in answers for run in runs_in(answer))


def runs_in(answer: ReportAnswer) -> Iterator[LastRun]:
    """The last run of each gang on a node; a report that can't be read still says whose it is."""
    for raw in answer.reports:
        if isinstance(raw, Mapping):
            report = Report.read(raw)
            alive = report.alive and not report.state.over if isinstance(report, Report) else raw.get("alive") is True
            yield LastRun(alive, str(raw.get("run_id") or ""), str(raw.get("gang") or ""))
    yield from (LastRun(alive=True, run_id="", gang=agent.gang) for agent in answer.without_files if not agent.stranger)
