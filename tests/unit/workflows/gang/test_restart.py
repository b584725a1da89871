"""restart over real agents: the same plan again, from what the nodes have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from orchestrator.gang.downtime import Downtime
from orchestrator.gang.view import GangView
from orchestrator.model.errors import GangFailed, InputError
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.workflows.gang.down import DownRequest, Stopped, down
from orchestrator.workflows.gang.restart import RestartRequest, refuse_leftovers, restart
from orchestrator.workflows.status.why import why

if TYPE_CHECKING:
    from tests.support.local_gang import LocalGang

pytestmark = pytest.mark.processes
Local = Callable[..., "LocalGang"]


@dataclass
class Told:
    downtimes: list[Downtime] = field(default_factory=list)

    def planned(self, plan: Plan) -> None:
        raise AssertionError("nothing is planned anew")

    def step(self, gang: str, words: str) -> None:
        pass

    def seen(self, views: tuple[GangView, ...]) -> None:
        pass

    def downtime(self, expected: Downtime) -> None:
        self.downtimes.append(expected)


def test_the_same_plan_runs_again_under_a_new_run_and_key(local: Local) -> None:
    gang = local()
    gang.up()
    before = gang.view()
    told = Told()
    done = restart(gang.inventory, RestartRequest(), told)  # type: ignore[arg-type]
    (after,) = done.views
    assert after.state is GangState.READY
    assert after.plan_id == before.plan_id and after.run_id != before.run_id
    assert told.downtimes[0].serving and told.downtimes[0].start_s is not None
    assert 0 < done.down_s < 30
    assert why(gang.inventory)[0].verdict is None


def test_a_failed_gang_and_one_that_was_stopped_come_back(local: Local) -> None:
    gang = local()
    gang.up()
    gang.kill_rank(2)
    gang.nothing_left()
    restart(gang.inventory, RestartRequest(), Told())  # type: ignore[arg-type]
    (account,) = why(gang.inventory)
    assert account.verdict is not None and not account.verdict.newest
    assert (account.verdict.cause.node, account.verdict.cause.signal) == ("node1", 9)
    down(gang.inventory, DownRequest())
    assert restart(gang.inventory, RestartRequest(), Told()).views[0].state is GangState.READY  # type: ignore[arg-type]


def test_without_a_plan_there_is_nothing_to_start_again(local: Local) -> None:
    gang = local()
    with pytest.raises(InputError, match="was never started"):
        restart(gang.inventory, RestartRequest(), Told())  # type: ignore[arg-type]


def test_a_gang_of_other_nodes_is_refused_before_anything_stops(local: Local) -> None:
    gang = local(nodes=2)
    gang.up()
    fewer = Inventory(path="hosts.yml", gangs=(GangSpec(name="gang0", nodes=(gang.spec(0),)),))
    with pytest.raises(InputError, match=r"node0, node1; the inventory's gang is node0"):
        restart(fewer, RestartRequest(), Told())  # type: ignore[arg-type]
    assert gang.view().state is GangState.READY


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (Stopped(gang="g", node="a", state="failed", left_behind=(7, 8)), "process 7, 8 does not end"),
        (Stopped(gang="g", node="a", state="stopping", alive=True), "its agent does not end"),
        (Stopped(gang="g", node="a", state="stopped", held=("GPU 0: by pid 7",)), "memory is still held: GPU 0: by"),
    ],
)
def test_what_is_in_the_way_is_named(left: Stopped, words: str) -> None:
    with pytest.raises(GangFailed, match=words):
        refuse_leftovers([left])
