"""Scenario files: a rehearsal in YAML, read strictly; every error names its place in the file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l40s_lab.faults.registry import find
from orchestrator.loading.yaml_fields import parse_yaml
from orchestrator.protocol.errors import InputError

BUILT_IN = Path(__file__).parents[1] / "scenarios"
_FIX = "list the built-in scenarios with `l40s-deploy lab rehearse --list`"
_LAB = {"nodes": int, "gangs": int, "wiring": str, "level": int}
_STEPS: dict[str, dict[str, type]] = {
    "say": {"say": str},
    "lab": {"lab": dict},
    "run": {"run": str, "exit": int, "findings": list, "nothing_else": bool},
    "break": {"break": str},
    "heal": {"heal": str},
    "until": {"until": str, "within_s": int, "cause": dict},
    "nothing_left": {"nothing_left": bool, "within_s": int},
}
"""Kind of step -> its keys; the first is the kind itself."""
_CAUSE = {"node": str, "tp_rank": int, "signal": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. kind: a key of the table above; what: its value; more: its other keys; where: for messages."""

    kind: str
    what: Any
    more: Mapping[str, Any]
    where: str

    @property
    def words(self) -> list[str]:
        """A command's words."""
        return shlex.split(str(self.what))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario. lab: the arguments of `lab up`; env: of the engines, so that a rehearsal need not last a night."""

    name: str
    summary: str
    lab: Mapping[str, Any]
    steps: tuple[Step, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def names() -> dict[str, str]:
    """The built-in scenarios, with their summaries."""
    return {path.stem: load(path.stem).summary for path in sorted(BUILT_IN.glob("*.yml"))}


def load(name: str) -> Scenario:
    """A built-in scenario, or a file; raises InputError."""
    path = BUILT_IN / f"{name}.yml"
    if "/" in name or not path.is_file():
        path = Path(name)
    try:
        text = path.read_text()
    except OSError as failure:
        known = ", ".join(sorted(path.stem for path in BUILT_IN.glob("*.yml")))
        raise InputError(
            f"no scenario {name!r} ({failure.strerror})", where="SCENARIO", fix=f"one of {known}, or a file"
        ) from failure
    except UnicodeDecodeError as failure:
        raise InputError(f"not YAML: {failure}", where=str(path), fix=_FIX) from failure
    return parse(parse_yaml(text, str(path), _FIX), path.stem, str(path))


def parse(document: object, name: str, where: str) -> Scenario:
    """A scenario from its document; raises InputError."""
    top = _mapping(document, {"summary": str, "lab": dict, "env": dict, "steps": list}, where)
    for key in ("summary", "steps"):
        if not top.get(key):
            raise InputError(f"found nothing, wanted {key}", where=where, fix=_FIX)
    env = {str(key): str(value) for key, value in top.get("env", {}).items()}
    steps = tuple(_step(raw, f"{where}: steps[{number}]") for number, raw in enumerate(top["steps"]))
    lab = _mapping(top.get("lab", {}), _LAB, f"{where}: lab")
    return Scenario(name=name, summary=top["summary"], lab=lab, env=env, steps=steps)


def _step(raw: object, where: str) -> Step:
    kinds = [kind for kind in _STEPS if isinstance(raw, dict) and kind in raw]
    if len(kinds) != 1:
        raise InputError(f"found {raw!r}, wanted one of {', '.join(_STEPS)}", where=where, fix=_FIX)
    known = _mapping(raw, _STEPS[kinds[0]], where)
    if kinds[0] == "lab":
        _mapping(known["lab"], _LAB, f"{where}.lab")
    if "cause" in known:
        _mapping(known["cause"], _CAUSE, f"{where}.cause")
    step = Step(kind=kinds[0], what=known.pop(kinds[0]), more=known, where=where)
    if step.kind in ("run", "break", "heal"):
        _check_words(step)
    return step


def _check_words(step: Step) -> None:
    try:
        words = step.words
    except ValueError as wrong:
        raise InputError(f"found {step.what!r}: {wrong}", where=step.where, fix=_FIX) from wrong
    fewest = {"run": 1, "break": 2, "heal": 1}[step.kind]
    if len(words) < fewest:
        raise InputError(f"found {step.what!r}, wanted at least {fewest} words", where=step.where, fix=_FIX)
    if step.kind == "break":
        find(words[1])


def _mapping(raw: object, known: Mapping[str, type], where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InputError(f"found {raw!r}, wanted a mapping", where=where, fix=_FIX)
    for key, value in raw.items():
        if key not in known:
            raise InputError(f"found {key!r}, wanted one of {', '.join(known)}", where=where, fix=_FIX)
        wanted = known[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise InputError(f"found {value!r}, wanted {wanted.__name__}", where=f"{where}.{key}", fix=_FIX)
    return dict(raw)
