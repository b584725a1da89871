"""Durations as they are typed."""

from __future__ import annotations

import argparse

import pytest

from orchestrator.cli.main import main
from orchestrator.cli.options import seconds


@pytest.mark.parametrize(
    ("text", "wanted"), [("90", 90), ("5s", 5), ("10m", 600), ("2h", 7200), ("0.5", 0.5), ("1.5h", 5400)]
)
def test_a_duration(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "5 m", "1d", "inf", "nan", "1e9", "m"])
def test_anything_else_is_refused_in_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="wanted a duration such as 90, 5s, 10m or 2h"):
        seconds(text)
    for words in (["restart", f"--timeout={text}"], ["logs", "-f", f"--since={text}"]):
        assert main(words) == 2
        assert "wanted a duration" in capsys.readouterr().err
