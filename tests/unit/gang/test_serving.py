"""Whose requests nobody takes over."""

from __future__ import annotations

import pytest

from orchestrator.gang.serving import alone, lost_models, model_words

TWO = {"a": "m", "b": "m"}
MIXED = {"a": "m", "b": "m", "c": "other"}
UNKNOWN = {"a": "", "b": "m"}


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
        ("an unknown model alone", ["a"], {"a": ""}, ("",)),
    ],
)
def test_models_that_nobody_serves_once_these_are_out(
    about: str, leaving: list[str], serving: dict[str, str], lost: tuple[str, ...]
) -> None:
    assert lost_models(leaving, serving) == lost, about


def test_one_at_a_time() -> None:
    assert alone("ab", TWO) == () and alone("abc", MIXED) == ("c",) and alone("a", {"a": "m"}) == ("a",)
    assert model_words(["m", ""]) == "m, this model"
