"""Lines that are too long for a terminal keep their column, their styles and their commands."""

from __future__ import annotations

import pytest
from rich.text import Text

from orchestrator.cli.screen import _console, hanging, printable, uncoloured


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("      node0: a b c d e f g h i", 22, "      node0: a b c d e\n        f g h i"),
        ("slow    node2: a card in slot 6", 24, "slow    node2: a card in\n        slot 6"),
        ("  fix:   run `ip link set ens5 up` then", 31, "  fix:   run\n         `ip link set ens5 up`\n         then"),
        ("short", 40, "short"),
        ("two\n\nlines", 40, "two\n\nlines"),
        ("a\tb", 40, "a       b"),
    ],
)
def test_a_line_goes_on_below_its_text(line: str, width: int, shown: str) -> None:
    assert hanging(Text(line), width).plain == shown


def test_styles_stay_where_they_were() -> None:
    text = Text("slow    ", style="yellow").append("node2: a card in slot 6", style="bold")
    line = hanging(text, 24)
    styles = {line.plain[span.start : span.end].strip(): str(span.style) for span in line.spans if span.style}
    assert styles["node2: a card in"] == styles["slot 6"] == "bold"


def test_colours_are_taken_out_of_a_log_and_nothing_else() -> None:
    line = "\x1b[2m2026\x1b[0m \x1b[38;5;9mERROR\x1b[0m \x1b[2J"
    assert printable(uncoloured(line)) == "2026 ERROR \\x1b[2J"


def test_a_word_longer_than_a_line_is_not_divided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    path = "/root/.local/state/l40s-deploy/golden/a_model.json"
    _console(True, stderr=False).print(f"  stored in {path}")
    assert capsys.readouterr().out.split("\n")[:2] == ["  stored in", f"    {path}"]
