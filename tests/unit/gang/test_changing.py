"""Which gangs start, take turns or would be missed when a plan meets running gangs."""

from __future__ import annotations

import pytest

from orchestrator.gang.changing import ChangeSchedule, GangStanding, course
from orchestrator.model.gang_state import GangState

S = GangState


def gang(name: str, state: GangState, *, same: bool = False) -> GangStanding:
    return GangStanding(name=name, state=state, same=same, serving=state is S.READY)


CASES = [
    ("nothing runs", [gang("a", S.ABSENT), gang("b", S.FAILED)], 0, ChangeSchedule(rise=("a", "b"))),
    ("this very plan runs", [gang("a", S.READY, same=True)], 0, ChangeSchedule(rise=("a",))),
    ("it is on its way with this plan", [gang("a", S.STARTING, same=True)], 0, ChangeSchedule(rise=("a",))),
    ("one gang, another plan", [gang("a", S.READY)], 0, ChangeSchedule(turns=("a",), alone=("a",))),
    ("two gangs", [gang("a", S.READY), gang("b", S.READY)], 0, ChangeSchedule(turns=("a", "b"))),
    ("a gang of another plan serves", [gang("a", S.READY)], 1, ChangeSchedule(turns=("a",))),
    (
        "one rises first, then serves",
        [gang("a", S.READY), gang("b", S.ABSENT)],
        0,
        ChangeSchedule(rise=("b",), turns=("a",)),
    ),
    (
        "one is there already",
        [gang("a", S.READY, same=True), gang("b", S.READY)],
        0,
        ChangeSchedule(rise=("a",), turns=("b",)),
    ),
    ("who does not serve goes first", [gang("a", S.READY), gang("b", S.DEGRADED)], 0, ChangeSchedule(turns=("b", "a"))),
    ("it does not serve, and stands alone", [gang("a", S.DEGRADED)], 0, ChangeSchedule(turns=("a",), alone=("a",))),
    ("on its way with another plan", [gang("a", S.WARMING)], 1, ChangeSchedule(turns=("a",), busy=("a",))),
    (
        "two, neither serves",
        [gang("a", S.DEGRADED), gang("b", S.DEGRADED)],
        0,
        ChangeSchedule(turns=("a", "b"), alone=("a",)),
    ),
    ("it is stopping", [gang("a", S.DRAINING), gang("b", S.STOPPING)], 0, ChangeSchedule(rise=("a", "b"))),
]


@pytest.mark.parametrize(("gangs", "elsewhere", "wanted"), [case[1:] for case in CASES], ids=[one[0] for one in CASES])
def test_the_course(gangs: list[GangStanding], elsewhere: int, wanted: ChangeSchedule) -> None:
    assert course(gangs, elsewhere=elsewhere) == wanted
