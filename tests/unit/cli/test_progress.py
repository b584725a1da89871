"""Progress where no line can be redrawn in place."""

from __future__ import annotations

import pytest

from orchestrator.cli import progress, transfers
from orchestrator.cli.progress import WordsInPlace
from orchestrator.cli.screen import Screen
from orchestrator.cli.transfers import counting


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_line_is_said_once_in_the_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with WordsInPlace(Screen(), "tuning", every_s=30.0) as shown:
        for clock.now in (101.0, 129.0, 130.0, 159.0, 161.0):
            shown.update(f"at {clock.now:.0f}")
    assert capsys.readouterr().err.splitlines() == ["tuning ...", "at 130", "at 161"]


def test_what_is_counted_says_how_fast_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(transfers, "time", clock)
    with counting(Screen(), "requests answered") as at:
        for clock.now, done in ((100.0, 0), (104.0, 8), (110.0, 20), (140.0, 80), (145.0, 100)):
            at("run", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "run: requests answered, 8 of 100, 2 a second, 0:46 left ...",
        "run: requests answered, 80 of 100, 2 a second, 0:10 left ...",
    ]
