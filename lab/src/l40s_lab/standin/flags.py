"""The command line of the SGLang version that is played: its flags, and argparse's error messages.

The lists are data, `{"flags": {"--name": {"takes", "type", "aliases", "choices", "negatable"}}}`, taken from the
versions' own parsers. They are searched for in $STANDIN_FLAGS (a file, or a directory of sglang-VERSION.json), then
beside this package in flags/, then in their place in the source tree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from .versions import Version

_HERE = Path(__file__).resolve().parent

_READABLE = {"--context-length", "--max-total-tokens", "--max-prefill-tokens", "--cuda-graph-prefill-max-context"}
"""Flags that 0.5 parses with human_readable_int (srt/arg_groups/fields); its list calls them text."""
_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class FlagListMissing(Exception):
    """No list of flags was found for a version."""


def find_flag_list(version: Version, given: str | None) -> Path:
    """The file with this version's flags. FlagListMissing names the places that were searched."""
    name = f"sglang-{version.name}.json"
    asked = given or os.environ.get("STANDIN_FLAGS")
    places = [Path(asked), Path(asked) / name] if asked else []
    places += [_HERE / "flags" / name, _HERE.parents[3] / "src" / "orchestrator" / "engines" / "flags" / name]
    for place in places:
        if place.is_file():
            return place
    raise FlagListMissing(f"no list of SGLang {version.name}'s flags in {', '.join(map(str, places))}")


def build_parser(listed: Path) -> argparse.ArgumentParser:
    """A parser with every flag of the list. It exits with status 2 on unknown flags, bad values and ambiguous
    prefixes."""
    flags: dict[str, dict[str, Any]] = json.loads(listed.read_text("utf-8"))["flags"]
    parser = argparse.ArgumentParser(
        prog="launch_server.py", usage="launch_server.py [-h] --model-path MODEL_PATH [options of this SGLang version]"
    )
    for name, flag in flags.items():
        parser.add_argument(name, *_aliases(name, flag), **_keywords(name, flag))
    return parser


def _aliases(name: str, flag: dict[str, Any]) -> list[str]:
    negated = [f"--no-{name[2:]}"] if flag.get("negatable") else []
    return [alias for alias in flag.get("aliases", ()) if alias not in negated and not alias.startswith("--no-")]


def _keywords(name: str, flag: dict[str, Any]) -> dict[str, Any]:
    if flag.get("negatable"):
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if flag["takes"] == "none":
        return {"action": "store_true"}
    words: dict[str, Any] = {
        "type": _kind(name, flag),
        "nargs": {"one": None, "optional": "?", "many": "+"}[flag["takes"]],
        "required": name == "--model-path",
    }
    if flag.get("choices"):
        words["choices"] = [words["type"](choice) for choice in flag["choices"]]
    return words


def _kind(name: str, flag: dict[str, Any]) -> Callable[[str], Any]:
    if name in _READABLE and flag["type"] == "text":
        return human_readable_int
    return {"int": int, "float": float}.get(flag["type"], str)


def human_readable_int(value: str) -> int:
    """8k is 8000, 8Ki is 8192 (srt/utils/common.py); only the decimal suffixes take a fraction."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if found and not ("." in found[1] and found[2].endswith("i")):
        return int(Decimal(found[1]) * _SUFFIXES[found[2]])
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid integer value: '{value}'. Use a plain integer, SI suffixes (1k, 1M), or IEC suffixes (1Ki, "
            "1Mi). Suffixes are case-sensitive."
        ) from None


class Given:
    """The values of a command line, by any full spelling of a flag."""

    def __init__(self, parser: argparse.ArgumentParser, argv: list[str]) -> None:
        self._values = vars(parser.parse_args(argv))
        self._dest = {spelling: action.dest for action in parser._actions for spelling in action.option_strings}

    def __call__(self, spelling: str, default: Any = None) -> Any:
        """The value, or the default if the flag was not given or does not exist in this version."""
        value = self._values.get(self._dest.get(spelling, ""))
        return default if value is None else value

    def shown(self) -> dict[str, Any]:
        """The given values, by attribute name."""
        return {name: value for name, value in self._values.items() if value not in (None, False)}
