"""Two gangs behind a router, two operators and clients: no verb loses a request without saying so, and none ends a gang
that it does not name. `make simulate` plays more lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.changes.changes import ORDER
from tests.changes.test_changes import LOOKS_ONLY
from tests.simulation import living
from tests.simulation.gang import Violated
from tests.simulation.living import Happens, Life, play_life
from tests.support.waiting import crowded

from orchestrator.cli.main import VERBS, every_parser, verbs_of
from orchestrator.gang.steps import down, restart_sequence

LIVES = 500
"""Always the same ones, so that a failure is of the change that it comes with. A run of the tests plays a part of them
by turns, in half a minute of processor time, and `make long` all; `make simulate` draws others."""
PARTS = 4


@pytest.mark.turns
@pytest.mark.parametrize("part", range(PARTS))
def test_random_lives(part: int) -> None:
    count = int(LIVES / PARTS / min(crowded(), 20.0))
    explored = living.explore(f"{part}/in make test", count)
    assert explored.scenarios == count and not explored.violations, "\n".join(explored.violations[:3])


AS_TYPED = {
    "rolling": "restart",
    "maintenance": "restart",
    "resume": "up",
    "up other": "up",
    "up --replace": "up",
    "up --gate": "up",
}  # fmt: skip
"""Verbs of a life as the command line has them, where it calls them otherwise."""
ELSEWHERE = {
    "guard": "it restarts by restart's own steps; test_soak.py here, and tests/chaos",
    "lock": "releases what a dead command left: test_simulation.py here lets such a lock go stale",
    "router down": "ends the router itself, and says so: every request fails from then on",
}
"""Verbs that change what serves, and that no life draws."""


def test_no_verb_that_changes_what_serves_is_missing_from_lives() -> None:
    """By the parser: a verb that is new is drawn, or is named above or among those that only look."""
    routers = verbs_of(verbs_of(every_parser())["router"])
    typed = {f"router {verb}" for verb in routers} | {verb for verb in VERBS if verb != "router"}
    drawn = {AS_TYPED.get(verb, verb) for verb in living.DRAWN}
    assert typed == {*drawn, *ELSEWHERE, *LOOKS_ONLY}
    assert set(ORDER) <= {*living.DRAWN}


def happens(*what: tuple[str, int, float, str]) -> Life:
    return tuple(Happens(verb, by, at, gang) for verb, by, at, gang in what)


CALM = {
    "one after the other": happens(("restart", 0, 0.5, "gang0"), ("restart", 0, 9.0, "gang1")),
    "down of one": happens(("down", 0, 0.5, "gang0")),
    "down and up": happens(("down", 0, 0.5, "gang0"), ("up", 1, 6.0, "gang0")),
    "the last one swept": happens(
        ("down", 0, 0.1, "gang1"), ("router up", 0, 4.3, "gang1"), ("sweep", 1, 5.6, "gang0")
    ),
    "down and certified": happens(("down", 0, 0.1, "gang1"), ("certify", 0, 6.0, "gang1")),
    "the last one down": happens(("down", 0, 0.5, "gang0"), ("restart", 0, 5.0, "gang1")),
}
TWO = {
    f"{first} and {second} {apart} s later": happens((first, 0, 1.0, "gang0"), (second, 1, 1.0 + apart, "gang1"))
    for first in ("restart", "rolling")
    for second in ("restart", "rolling")
    for apart in (0.05, 1.5, 3.0)
}
"""Two operators, each with one gang."""


@pytest.mark.parametrize("name", CALM)
def test_verbs_of_one_operator_lose_nothing(name: str) -> None:
    service = play_life(CALM[name])
    assert service.served > 20


@pytest.mark.parametrize("name", TWO)
def test_two_operators_take_nothing_down_together(name: str) -> None:
    service = play_life(TWO[name])
    assert all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes), service.told()


TAKES_OUT = (
    "restart", "rolling", "maintenance", "rollback", "up other", "up --replace", "up --gate", "sweep", "router remove",
)  # fmt: skip
"""Verbs that take a gang that serves out from behind the router."""


@pytest.mark.parametrize("verb", TAKES_OUT)
def test_every_verb_that_takes_a_gang_out_waits_for_another_s_and_names_it(verb: str) -> None:
    """For `rollback` the gang has had another plan before."""
    earlier = happens(("up other", 1, 0.1, "gang1")) if verb == "rollback" else ()
    service = play_life((*earlier, *happens(("restart", 0, 12.0, "gang0"), (verb, 1, 12.5, "gang1"))))
    holder, waits = service.verbs[-2:]
    assert (holder.verb, waits.verb) == ("restart", verb)
    assert any("waiting: " in words and "changes gang0 behind" in words for words in waits.words), service.told()
    assert waits.ended > holder.ended and not holder.refused


def test_a_down_waits_for_nobody_and_says_that_it_is_the_last() -> None:
    service = play_life(happens(("restart", 0, 1.0, "gang0"), ("down", 1, 1.5, "gang1")))
    holder, ends = service.verbs
    assert not ends.refused and ends.ended < holder.ended
    assert any("last one that served behind the router" in words for words in ends.words), service.told()


@pytest.mark.parametrize("verb", ["up", "restart"])
def test_what_starts_a_gang_that_has_ended_waits_for_nobody(verb: str) -> None:
    """A recovery, or a start: it takes nothing from clients."""
    life = happens(("down", 1, 0.1, "gang1"), ("restart", 0, 12.0, "gang0"), (verb, 1, 12.5, "gang1"))
    service = play_life(life)
    recovers = service.verbs[-1]
    assert not recovers.refused and not any("waiting: " in words for words in recovers.words), service.told()


@pytest.mark.parametrize("apart", [0.05, 1.5])
@pytest.mark.parametrize("first", ["gang0", "gang1"])
def test_an_operator_who_knows_one_gang_alone_waits_for_the_others(first: str, apart: float) -> None:
    """His inventory does not have gang1, which is behind the same router."""
    second = {"gang0": "gang1", "gang1": "gang0"}[first]
    whose = {"gang0": 0, "gang1": 1}
    life = (Happens("restart", whose[first], 1.0, first), Happens("restart", whose[second], 1.0 + apart, second))
    service = play_life((Happens("forget", 0, 0.1), *life))
    assert all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes), service.told()


@pytest.mark.parametrize("change", living.CHANGES)
@pytest.mark.parametrize("verb", ["up", "restart", "down"])
@pytest.mark.parametrize("gang", ["gang0", "gang1"])
def test_a_verb_after_a_change_of_the_inventory(change: str, verb: str, gang: str) -> None:
    play_life((Happens(change, 0, 0.1, gang), Happens(verb, 0, 0.5, gang)))


def test_a_router_is_told_of_no_gang_that_drains() -> None:
    play_life(happens(("restart", 1, 1.17, "gang0"), ("router up", 0, 2.479, "gang0")))


def test_a_gang_that_another_command_takes_out_is_not_added_meanwhile() -> None:
    """It would drain for ever."""
    service = play_life(happens(("rolling", 1, 0.5, "gang0"), ("router add", 0, 1.3, "gang0")))
    first, second = service.controllers
    assert "changes it with" in first.outcomes[0] and second.outcomes == ["rolling gang0: done"], service.told()


def everything(inventory: Any, _: object) -> Any:
    return inventory.gangs


SEEDED: dict[str, tuple[Any, str, Callable[..., Any], Life, str]] = {
    "down stops all gangs": (down, "chosen_gangs", everything, CALM["down of one"], "sends stop to"),
    "a restart neither leaves the router nor drains": (
        restart_sequence, "set_aside", lambda *_: None, CALM["one after the other"], "requests were lost",
    ),
    "a restart does not put it back": (
        restart_sequence, "put_back", lambda *_: None, happens(("restart", 0, 0.5, "gang0")), "gets no requests",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, bug, life, violates = SEEDED[name]
    play_life(life)
    monkeypatch.setattr(module, attribute, bug)
    with pytest.raises(Violated, match=violates):
        play_life(life)
