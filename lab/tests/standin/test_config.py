"""--config as 0.5.23 reads it: the file's flags come first, so that those of the command line win."""

from __future__ import annotations

from pathlib import Path

import pytest

from l40s_lab.standin.config import merged


def test_flags_of_the_file_come_first(tmp_path: Path) -> None:
    file = tmp_path / "secrets.yml"
    file.write_text('# not this\napi-key: "k\\"q"\nport: 8000\n')
    argv = ["--model-path", "m", "--config", str(file), "--tp-size", "2"]
    assert merged(argv) == ["--api-key", 'k"q', "--port", "8000", "--model-path", "m", "--tp-size", "2"]
    assert merged(["--tp-size", "2"]) == ["--tp-size", "2"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--config"], "No config file specified"),
        (["--config", "x.json"], "must be YAML"),
        (["--config", "/none.yml"], "not found"),
    ],
)
def test_the_engines_own_refusals(argv: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        merged(argv)
