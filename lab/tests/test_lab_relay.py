"""What the relay in a cable does to frames."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from l40s_lab.relay import Treatment

HEADER = 14
"""Of Ethernet."""


def frame(packet: int) -> bytes:
    return bytes(HEADER + packet)


def test_a_cable_without_treatment_passes_all_at_once() -> None:
    assert Treatment().arrivals(frame(9000)) == [0.0]


@pytest.mark.parametrize(("packet", "arrives"), [(1400, [0.0]), (1401, [])])
def test_a_black_hole_loses_what_is_longer(packet: int, arrives: list[float]) -> None:
    assert Treatment(longest=1400).arrivals(frame(packet)) == arrives


def test_all_or_a_share_of_them_come_twice_or_late() -> None:
    assert Treatment(doubled=1.0).arrivals(frame(100)) == [0.0, 0.0]
    assert Treatment(overtaken=1.0, overtaken_by_s=0.5).arrivals(frame(100)) == [0.5]
    some = Treatment(doubled=0.5, overtaken=0.5, overtaken_by_s=0.5)
    kinds = {tuple(some.arrivals(frame(100))) for _ in range(1000)}
    assert kinds == {(0.0,), (0.5,), (0.0, 0.0), (0.5, 0.5)}


def test_a_delay_varies_by_its_jitter_and_is_never_negative() -> None:
    late = [Treatment(delay_s=0.001, jitter_s=0.01).arrivals(frame(100))[0] for _ in range(1000)]
    assert min(late) == 0.0 and 0.001 < max(late) <= 0.011


def test_it_comes_through_a_command_line() -> None:
    asked = Treatment(delay_s=0.025, jitter_s=0.0025, longest=1400)
    assert Treatment(**{**json.loads(json.dumps(asdict(asked))), "between": ()}) == asked
