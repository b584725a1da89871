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
from tests.simulation.service import AT_ONCE_VERBS, NEW_KEY, OLD_KEY, key_of, serving
from tests.support.waiting import crowded

from orchestrator.cli.main import VERBS, every_parser, verbs_of
from orchestrator.gang import guarding
from orchestrator.gang.steps import down, restart_sequence
from orchestrator.model.gang_state import GangState

LIVES = 500
"""Always the same ones, so that a failure is of the change that it comes with. A run of the tests plays a part of them
by turns, in six seconds of processor time, and `make long` all; `make simulate` draws others."""
PARTS = 16
BUGS_PLAYED = 4


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
    "restart all": "restart",
    "rolling all": "restart",
    "down --as": "down",
}  # fmt: skip
"""Verbs of a life as the command line has them, where it calls them otherwise."""
ELSEWHERE = {
    "lock": "releases what a dead command left: test_simulation.py here lets such a lock go stale",
    "router down": "ends the router itself, and says so: keys are rotated with it below",
}
"""Verbs that change what serves, and that no life draws."""


def test_no_verb_that_changes_what_serves_is_missing_from_lives() -> None:
    """By the parser: a verb that is new is drawn, or is named above or among those that only look."""
    routers = verbs_of(verbs_of(every_parser())["router"])
    typed = {f"router {verb}" for verb in routers} | {verb for verb in VERBS if verb != "router"}
    drawn = {AS_TYPED.get(verb, verb) for verb in (*living.DRAWN, living.GUARDED)}
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
    "all restarted": happens(("restart all", 0, 0.5, "gang0")),
    "all restarted one by one": happens(("rolling all", 0, 0.5, "gang0")),
    "renamed and ended": happens(("rename", 0, 0.1, "gang1"), ("down --as", 0, 0.5, "gang1"), ("up", 0, 9.0, "gang1")),
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


@pytest.mark.parametrize("verb", AT_ONCE_VERBS)
def test_all_at_once_waits_for_nobody(verb: str) -> None:
    service = play_life(happens(("restart", 0, 1.0, "gang0"), (verb, 1, 1.5, "gang1")))
    holder, at_once = service.verbs
    assert all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes), service.told()
    assert not any("waiting: " in words for words in (*holder.words, *at_once.words)), service.told()
    assert service.excused, "both were out"


@pytest.mark.parametrize("verb", ["sweep", "restart"])
def test_who_takes_a_gang_out_waits_until_a_sweep_has_ended(verb: str) -> None:
    """Between two candidates too: the one that is measured was behind the router."""
    service = play_life((*happens(("sweep", 0, 1.0, "gang0")), *happens((verb, 1, 7.0, "gang1"))))
    holder, waits = service.verbs
    assert all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes), service.told()
    assert any("waiting: " in words and "with `sweep gang0`" in words for words in waits.words), service.told()
    assert not any("waiting: " in words for words in holder.words) and not service.excused


def test_nobody_counts_on_a_candidate_of_a_gang_that_did_not_serve() -> None:
    """Its sweep stops it whenever it has measured it."""
    life = (*happens(("down", 0, 0.1, "gang1"), ("sweep", 0, 6.0, "gang1")), *happens(("router up", 1, 9.5, "gang0")))
    service = play_life((*life, *happens(("restart", 1, 10.5, "gang0"))))
    added, waits = service.verbs[-2:]
    left_out = [words for words in added.words if "gang1: not added to the router: " in words]
    assert left_out and "changes it with `sweep gang1`" in left_out[0], added.words
    assert any("waiting: " in words and "with `sweep gang1`" in words for words in waits.words), service.told()


def test_a_start_while_another_gang_is_swept_waits_for_nobody_and_adds_no_candidate() -> None:
    life = happens(("down", 1, 0.1, "gang1"), ("sweep", 0, 6.0, "gang0"), ("up", 1, 14.0, "gang1"))
    service = play_life(life)
    sweeps, starts = service.verbs[-2:]
    assert not starts.refused and starts.ended < sweeps.ended, service.told()
    assert not any("waiting: " in words for words in starts.words)
    assert not any("another command has put it behind the router" in words for words in sweeps.words), service.told()


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


GUARDED = Happens(living.GUARDED, 0, 0.0)


def test_a_sweep_that_is_refused_leaves_its_gang_in_the_router() -> None:
    """The lock of a command that was killed lasts longer than its claim on the router's host."""
    killed = Happens(living.KILLS, 0, 4.0)
    service = play_life((*happens(("rolling all", 0, 0.5, "gang0"), ("sweep", 1, 3.0, "gang1")), killed))
    assert "LockHeld" in service.controllers[1].outcomes[0], service.told()


def test_a_look_while_a_down_still_drains_leaves_what_that_has_announced() -> None:
    """`restart --all` afterwards takes down the only one that serves, which it announces; the other one does not."""
    life = happens(("down", 1, 1.8, "gang0"), ("router up", 0, 2.1, "gang0"), ("restart all", 0, 6.3, "gang0"))
    service = play_life(life)
    assert all(outcome.endswith(": done") for one in service.controllers for outcome in one.outcomes), service.told()


def test_a_gang_starts_on_the_node_that_another_one_has_left() -> None:
    life = (*happens(("down", 0, 0.1, "gang1")), Happens("regroup", 1, 5.0), Happens("up --replace", 1, 5.5, "gang0"))
    service = play_life(life)
    assert service.controllers[1].outcomes == ["up --replace gang0: done"], service.told()
    assert service.gangs["gang0"].names == ("n0", "n3") and serving(service.gangs["gang0"])


KILLED_RESTART = (*happens(("restart", 0, 0.5, "gang0")), Happens(living.KILLS, 0, 2.2))
"""After its stop, before it starts anything."""
LEFT_BY_HAND = (*happens(("maintenance", 0, 0.5, "gang0")), Happens(living.INTERRUPTS, 0, 3.0))
LATE_S = 20.0
"""After a fault or a death that everybody can see by then."""


def test_a_guard_finishes_what_a_killed_command_has_begun() -> None:
    service = play_life((GUARDED, *KILLED_RESTART))
    assert service.controllers[0].outcomes == ["restart gang0: killed"], service.told()
    assert serving(service.gangs["gang0"]) and len(service.router.behind()) == len(service.gangs)


def test_a_guard_brings_a_gang_back_and_what_another_verb_loses_meanwhile_is_announced() -> None:
    life = (GUARDED, Happens("kill-rank", 0, 0.5), *happens(("rolling", 1, 0.5 + LATE_S, "gang1")))
    service = play_life(life)
    assert any("it has been restarted" in words for words in service.guard_words), service.told()
    assert service.strikes == {} and len(service.router.behind()) == len(service.gangs)


def test_a_guard_that_does_not_have_a_new_key_has_the_gang_serve() -> None:
    """A change to that key was killed half-way, by an operator who has it."""
    life = (GUARDED, Happens("new key", 0, 0.7), *happens(("up", 0, 5.6, "gang1")), Happens(living.KILLS, 0, 9.6))
    service = play_life(life)
    assert serving(service.gangs["gang1"]), service.told()


def test_no_guard_starts_what_its_operator_has_left_stopped_to_work_on_it() -> None:
    service = play_life((GUARDED, *LEFT_BY_HAND))
    assert service.controllers[0].outcomes == ["maintenance gang0: interrupted"], service.told()
    assert serving(service.gangs["gang0"]) is None


KEYS_OF = {"gangs": ("a key", "new key"), "clients": ("clients' key", "clients' new key")}
"""Before and after; a clients' key is the gangs' too, and the router passes it on."""
STATES: dict[str, Life] = {
    "both serve": (),
    "one is out": happens(("router remove", 1, 28.0, "gang1")),
    "one restarts": happens(("restart", 1, 28.9, "gang1")),
}
ROUTERS: dict[str, Life] = {
    "stays": (),
    "dies": (Happens(living.ROUTER_DIES, 0, 55.0), *happens(("router up", 0, 56.0, "gang0"))),
    "anew": happens(("router anew", 0, 55.0, "gang0")),
}


def written(key: str, at: float) -> Life:
    """By both operators."""
    return tuple(Happens(key, by, at) for by in (0, 1))


@pytest.mark.turns
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("whose", KEYS_OF)
def test_a_key_is_rotated_in_every_state_and_no_request_is_lost(whose: str, state: str, router: str) -> None:
    """Both gangs have a key; another one is written and given to gang1, then to gang0. A router that passes its
    clients' key on has to begin anew in between, and until then the last gang with the former key is kept."""
    before, after = KEYS_OF[whose]
    has_it = happens(("up other", 0, 0.5, "gang0"), ("up other", 0, 10.0, "gang1"), ("router anew", 0, 20.0, "gang0"))
    changes = happens(("up --replace", 0, 36.0, "gang1"), ("up --replace", 0, 46.0, "gang0"))
    life = [*written(before, 0.1), *has_it, *written(after, 29.0), *changes, *STATES[state], *ROUTERS[router]]
    last = happens(("up --replace", 0, 62.0, "gang0"))
    service = play_life((*sorted(life, key=lambda one: one.at), *last))
    keys = {name: key_of(gang) for name, gang in service.gangs.items()}
    kept = whose == "clients" and router == "stays"
    assert keys == {"gang0": OLD_KEY if kept else NEW_KEY, "gang1": NEW_KEY}, service.told()
    reached = {url for url in service.router.behind() if not service.router.refused(url)}
    assert len(reached) == (1 if kept else 2) and not service.router_out, service.told()


def test_a_guard_brings_the_router_back_with_every_gang() -> None:
    service = play_life((GUARDED, Happens(living.ROUTER_DIES, 0, 1.0)))
    assert len(service.router.behind()) == 2 and not service.router_out, service.told()


def wants_a_restart(state: GangState) -> Callable[..., str]:
    return lambda view, _: "a seeded bug" if view.state is state else ""


SEEDED: dict[str, tuple[Any, str, Callable[..., Any], Life, str]] = {
    "down stops all gangs": (down, "chosen_gangs", everything, CALM["down of one"], "sends stop to"),
    "down of a former name stops all gangs": (
        down, "chosen_gangs", everything, CALM["renamed and ended"], "sends stop to",
    ),
    "a restart neither leaves the router nor drains": (
        restart_sequence, "set_aside", lambda *_: None, CALM["one after the other"], "requests were lost",
    ),
    "a restart of all neither leaves the router nor drains": (
        restart_sequence, "set_aside", lambda *_: None, CALM["all restarted"], "requests were lost",
    ),
    "a restart does not put it back": (
        restart_sequence, "put_back", lambda *_: None, happens(("restart", 0, 0.5, "gang0")), "gets no requests",
    ),
    "a restart says nothing after a fault of the other one": (
        restart_sequence, "downtime_words", lambda *_: "",
        (Happens("power-off", 0, 0.1), *happens(("restart", 1, LATE_S, "gang1"))), "requests were lost",
    ),
    "a restart says nothing while another one's was killed": (
        restart_sequence, "downtime_words", lambda *_: "",
        (*KILLED_RESTART, *happens(("restart", 1, 2.2 + living.STALE_S, "gang1"))), "requests were lost",
    ),
    "a guard restarts what serves": (
        guarding, "_reason", wants_a_restart(GangState.READY), (GUARDED, *CALM["down of one"]), "the guard ends",
    ),
    "a guard starts what a person has ended": (
        guarding, "_reason", wants_a_restart(GangState.ABSENT), (GUARDED, *CALM["down of one"]),
        "which a person has ended",
    ),
    "a guard starts what is worked on": (
        guarding, "may_finish", lambda begun: begun.turning, (GUARDED, *LEFT_BY_HAND), "which a person has ended",
    ),
    "a guard does not finish what a killed command has begun": (
        guarding, "_left_half_way", lambda *_: "", (GUARDED, *KILLED_RESTART), "does not bring",
    ),
}  # fmt: skip


@pytest.mark.turns(play=BUGS_PLAYED)
@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, bug, life, violates = SEEDED[name]
    play_life(life)
    monkeypatch.setattr(module, attribute, bug)
    with pytest.raises(Violated, match=violates):
        play_life(life)
