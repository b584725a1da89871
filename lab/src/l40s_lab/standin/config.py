"""`--config FILE.yml`: flags from a file, inserted before those of the command line (0.5.23
srt/utils/server_args_config_parser.py). Only `name: value` lines of YAML are read, with values as in JSON or bare.
"""

from __future__ import annotations

import json
from pathlib import Path

FLAG = "--config"


def merged(argv: list[str]) -> list[str]:
    """The arguments with the file's in place of `--config FILE`. Raises ValueError with the engine's own message."""
    if FLAG not in argv:
        return argv
    place = argv.index(FLAG)
    if place + 1 >= len(argv):
        raise ValueError("No config file specified after --config flag!")
    path = Path(argv[place + 1])
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {path}")
    return [*_arguments(path.read_text("utf-8")), *argv[:place], *argv[place + 2 :]]


def _arguments(text: str) -> list[str]:
    words = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            words += [f"--{name.strip()}", _value(value.strip())]
    return words


def _value(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text
