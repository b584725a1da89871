"""Signs of life where no line can be changed in its place."""

from __future__ import annotations

import pytest

from orchestrator.cli import progress
from orchestrator.cli.progress import WordsInPlace
from orchestrator.cli.screen import Screen


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
