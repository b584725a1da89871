"""Every field of what a node reports and of what it says was staged there, forged: values of its type that mean another
machine, another gang, a path or nothing. What one of two or of four nodes says is taken for nothing but itself."""

from __future__ import annotations

import json
import random
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import pytest
from tests.fuzz.forged import EVIL, SIZES, VICTIM_RUN, believe, case_of, world_of
from tests.fuzz.mutate import dumped
from tests.support.turns import drawn, sampled
from tests.unit.protocol.test_every_message import sound

from orchestrator.protocol.message import Message, Unreadable
from orchestrator.protocol.report import Report
from orchestrator.protocol.staging import StagingRequest

TEXTS = (
    EVIL, "../.." + EVIL, "http://127.0.0.1:18677", "http://10.0.0.17:8000", "127.0.0.1:18677", "node0", "node1",
    "node6", "gang1", VICTIM_RUN, "hung", "slow", "lost", "silent", "", "x" * 300, "\0\x1b[2J", "$(evil); evil",
    "--flag=evil",
)  # fmt: skip
NUMBERS = (-1, 0, 1, 7, 1 << 40, (1 << 63) - 1, 10**30)
SECONDS = (0.0, -1.0, 5.0, 2e9, 1e11, 1e308, float("nan"), float("inf"))
MANY = 300
DOCUMENTS: dict[str, type[Message]] = {"report": Report, "request": StagingRequest}
CASES = 200
"""Of each document, which the commit chooses; `make long` plays all."""


def forged_values(hint: Any) -> Iterator[Any]:
    """Values of this type, and of each field of the messages in it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        yield None
        yield from (value for kind in arguments if kind is not types.NoneType for value in forged_values(kind))
    elif origin is tuple:
        yield []
        yield [next(iter(forged_values(arguments[0])))] * MANY
        yield from ([value] for value in forged_values(arguments[0]))
    elif origin is Mapping:
        yield {}
        yield from ({key: value} for key in TEXTS for value in forged_values(arguments[1]))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield from (member.value for member in hint)
    elif isinstance(hint, type) and issubclass(hint, Message):
        whole = sound(hint)
        yield whole
        fields = typing.get_type_hints(hint).items()
        yield from ({**whole, name: value} for name, inner in fields for value in forged_values(inner))
    else:
        plain: dict[Any, tuple[Any, ...]] = {str: TEXTS, int: NUMBERS, float: SECONDS, bool: (True, False)}
        yield from plain.get(hint, ({"a": [1]},))


def lies(document: str) -> list[tuple[str, Any]]:
    """(key, value) of each."""
    hints = typing.get_type_hints(DOCUMENTS[document])
    return [(key, value) for key, hint in hints.items() for value in forged_values(hint)]


def test_every_field_has_lies() -> None:
    for document, kind in DOCUMENTS.items():
        assert {key for key, _ in lies(document)} == {*typing.get_type_hints(kind)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_field_of_one_node_moves_another(document: str) -> None:
    """Each lie by itself, of the leader or the last node, where three others outvote it or one does not."""
    rng = random.Random(f"{drawn('forged fields')}/{document}")
    for key, value in sampled(f"forged {document}", lies(document), CASES):
        world = world_of(rng.choice(SIZES))
        case = case_of(world, rng.choice((world.own.leader.name, world.last)))
        case[document] = {**case[document], key: value}
        _play(case, f"{document}.{key}")


def _play(case: Mapping[str, Any], what: str) -> None:
    text = dumped(case).encode("utf-8", "surrogatepass")
    try:
        believe(text)
    except Exception as defect:
        raise AssertionError(f"{what}: {defect!r}; {case['liar']} of {case['nodes']}: {text[:3000]!r}") from defect


def _own_run(world: Any, liar: str) -> dict[str, Any]:
    url = next(node.stated_url for node in world.own.nodes if node.name == liar)
    serves = {"service_url": url, "service_healthy": True, "service_checked_at": 999.0}
    return {"run_id": "r9", "started_at": 999.0, "members": [liar], "node_rank": 0, **serves}


PLOTS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "a run of its own, that it leads": _own_run,
    "another gang's run": lambda _, liar: {"run_id": VICTIM_RUN, "started_at": 999.0, "members": [liar]},
    "alone": lambda _, liar: {"members": [liar], "node_rank": 0, "nnodes": 1},
    "another leader": lambda world, liar: {**_own_run(world, liar), "run_id": world.run, "members": [liar, "node1"]},
    "with another gang's nodes": lambda _, liar: {"members": [liar, "node6", "node7"]},
    "another gang's model": lambda _, liar: {"model": "gpt-oss-120b", "served": ["glm", "default"]},
    "another gang": lambda *_: {"gang": "gang1", "node": "node6"},
}  # fmt: skip
"""Lies of several fields that belong together."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("plot", PLOTS)
def test_no_plot_of_one_node_moves_another(plot: str, size: int) -> None:
    world = world_of(size)
    for liar in world.reports:
        case = case_of(world, liar)
        told = PLOTS[plot](world, liar)
        case["report"] = {**case["report"], **told}
        staged = {key: value for key, value in told.items() if key in case["request"]}
        case["request"] = {**case["request"], **staged, "asked": {"model": "m", "extra_args": [EVIL], "accept": ["X"]}}
        _play(case, plot)


def test_the_last_of_doubled_keys_counts_and_deep_nesting_is_no_report() -> None:
    world = world_of()
    case = case_of(world, "node0")
    for key in ("service_url", "members", "run_id", "addresses"):
        text = json.dumps(case).replace(f'"{key}":', f'"{key}": ["{EVIL}"], "{key}": "{VICTIM_RUN}", "{key}":')
        believe(text.encode())
    deep: Any = EVIL
    for _ in range(40):
        deep = {"a": [deep]}
    _play({**case, "report": {**case["report"], "began": deep}}, "deep")
    assert isinstance(Report.read({**case["report"], "began": deep}), Unreadable)
