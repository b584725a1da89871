"""`up` connects the nodes once: its steps get what is connected and what was seen, and hand on what they found."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from tests.architecture.reached import Place, calls_of, definitions, reached_from
from tests.support.sources import PRODUCT

ROOTS = (
    ("orchestrator.gang.commands.up", "run"),
    ("orchestrator.golden.hooks", "gate"),
    ("orchestrator.golden.hooks", "after_ready"),
    ("orchestrator.nettest.hooks", "before_go"),
    ("orchestrator.tuning.hooks", "before_go"),
)
"""`up`, and what the rooms do in it."""
FLEET = ("orchestrator.remote.fleet", "Fleet")
LOOKING = tuple(("orchestrator.gang.steps.status.reports", name) for name in ("see", "everything"))
LOOKS = {
    "gang.steps.operation.Operation": 2,
    "gang.steps.raising._follow": 1,
}
"""By place, where `up` itself looks at gangs: all that the nodes know, the gangs that a step names (the chosen ones
before they are locked, those behind the router), and a start that is followed. A number here may only fall."""

LOOKS_OF_WHAT_IT_GOES_ON_WITH = {
    "gang.steps.router.client.Router": 1,
    "gang.steps.restart_sequence.RestartSequence": 1,
    "gang.steps.restart_sequence.set_aside": 1,
    "gang.steps.router.draining._Waiting": 1,
    "gang.steps.examination.examine": 1,
    "gang.steps.restart.finish": 1,
    "gang.steps.staging.staged_plan": 1,
    "jobs.run.serving_view": 1,
    "bench.steps.bench._Bench": 1,
}
"""The router's own agent, the turn of a gang that is changed over, whether it hangs while it drains, the doctor on
gangs that run, an interrupted restart that is finished, a gang of which no plan is staged under its name, and the
questions of rooms that work on a gang elsewhere too."""


@cache
def called_by_up() -> dict[Place, ast.AST]:
    return reached_from(ROOTS)


def test_up_connects_in_one_place() -> None:
    """With its router, claim, locks, checks and gate. The fleet itself makes the second one for what goes on beside."""
    assert calls_of(called_by_up(), FLEET) == {"gang.steps.operation.connected": 2, "remote.fleet.Fleet": 1}


BESIDE = {"gang.steps.status.health.health": 1}
"""What the doctor says against a restart of a gang that serves is asked aside, once a minute for all who want it."""


@pytest.mark.parametrize(
    ("module", "beside"),
    [
        *(
            (f"gang.commands.{name}", {})
            for name in ("lock", "logs", "history", "down", "restart", "rollback", "plan", "doctor")
        ),
        ("gang.commands.why", BESIDE),
        ("gang.commands.status", BESIDE),
        ("monitoring.commands.web", BESIDE),
        ("monitoring.commands.export", {}),
        ("nettest.commands.nettest", {}),
        ("tuning.commands.check", {}),
        ("sweep.commands.sweep", {}),
        ("support.commands.certify", {}),
        ("hosts.commands.prepare", {}),
        ("support.commands.support_bundle", BESIDE),
        ("golden.commands.golden", {}),
        ("bench.commands.bench", {}),
    ],
)
def test_a_command_connects_in_one_place(module: str, beside: dict[str, int]) -> None:
    reached = reached_from([(f"orchestrator.{module}", "run")])
    places = calls_of(reached, FLEET)
    assert places == {"gang.steps.operation.connected": 2, "remote.fleet.Fleet": 1} | beside


@pytest.mark.parametrize("name", ["down", "restart", "restart_sequence", "rollback", "maintenance"])
def test_steps_of_other_commands_open_nothing_of_their_own(name: str) -> None:
    module = f"orchestrator.gang.steps.{name}"
    assert not calls_of({(module, name): body for name, body in definitions(module).items()}, FLEET)


def test_up_looks_at_gangs_in_few_places() -> None:
    assert calls_of(called_by_up(), *LOOKING) == LOOKS | LOOKS_OF_WHAT_IT_GOES_ON_WITH


def test_what_a_function_reaches_is_found_through_modules_classes_and_tables() -> None:
    reached = called_by_up()
    for module, name in (
        ("gang.steps.locks", "GangLock"),
        ("gang.steps.router.claim", "RouterTurn"),
        ("gang.steps.router.routing", "take_in_all"),
        ("gang.steps.raising", "raise_all"),
        ("golden.steps.gate", "Gate"),
        ("bench.steps.bench", "measured"),
    ):
        assert (f"orchestrator.{module}", name) in reached


def hooks_of_classes(tree: ast.AST) -> list[str]:
    """Class attributes that somebody is to set to a function before the class can be used."""
    declared = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value is None]
    return [ast.unparse(node.target) for node in declared if "ClassVar[Callable" in ast.unparse(node.annotation)]


def test_nothing_has_to_be_set_before_it_can_be_used() -> None:
    """What connects, packs and reads is imported by who uses it: no class waits for a process to set it up."""
    hooks = {path.name: hooks_of_classes(ast.parse(path.read_text())) for path in sorted(PRODUCT.rglob("*.py"))}
    assert {name: attributes for name, attributes in hooks.items() if attributes} == {}


def test_such_a_class_is_seen() -> None:
    assert hooks_of_classes(ast.parse("class Fleet:\n    opener: ClassVar[Callable[[str], int]]")) == ["opener"]
