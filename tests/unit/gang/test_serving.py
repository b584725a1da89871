"""Whose requests nobody takes over."""

from __future__ import annotations

import pytest

from orchestrator.gang.serving import Names, alone, lost_names, name_words, names_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState

TWO = {"a": ("m",), "b": ("m",)}
MIXED = {"a": ("m",), "b": ("m",), "c": ("other",)}
UNKNOWN = {"a": ("",), "b": ("m",)}
CALLED = {"a": ("m", "default"), "b": ("m",)}
"""One of them by an alias too."""


@pytest.mark.parametrize(
    ("about", "leaving", "serving", "lost"),
    [
        ("another one serves it", ["a"], TWO, ()),
        ("all of them go", ["a", "b"], TWO, ("m",)),
        ("another model serves on", ["c"], MIXED, ("other",)),
        ("both, of which one is served on", ["a", "c"], MIXED, ("other",)),
        ("one that does not serve", ["z"], TWO, ()),
        ("nobody serves", ["a"], {}, ()),
        ("an unknown model counts as the same", ["a"], UNKNOWN, ()),
        ("also where it is the other one's", ["b"], UNKNOWN, ()),
        ("another one has not all of its names", ["a"], CALLED, ("default",)),
        ("but the other has all of its own", ["b"], CALLED, ()),
        ("an unknown model alone", ["a"], {"a": ("",)}, ("",)),
    ],
)
def test_names_that_nobody_serves_once_these_are_out(
    about: str, leaving: list[str], serving: dict[str, Names], lost: Names
) -> None:
    assert lost_names(leaving, serving) == lost, about


def test_one_at_a_time() -> None:
    assert alone("ab", TWO) == () and alone("abc", MIXED) == ("c",) and alone("a", {"a": ("m",)}) == ("a",)
    assert alone("ab", CALLED) == ()
    assert name_words(["m", ""]) == "m, this model"


@pytest.mark.parametrize(
    ("about", "served", "aliases", "names"),
    [
        ("its profile's, where an older release started it", (), (), ("m",)),
        ("what its engine was told", ("prod", "prod-2"), (), ("prod", "prod-2")),
        ("and the router's", ("prod",), ("default", "prod"), ("prod", "default")),
    ],
)
def test_what_a_gang_is_asked_for(about: str, served: Names, aliases: Names, names: Names) -> None:
    view = GangView(name="a", state=GangState.READY, model="m", served=served)
    assert names_of(view, aliases) == names, about
