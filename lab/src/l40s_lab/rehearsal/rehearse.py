"""`lab rehearse`: runs a scenario as an operator would, and compares each step with the expected result."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from l40s_lab import files
from l40s_lab.breaking.breaking import break_node, heal_node
from l40s_lab.life.down import down
from l40s_lab.life.home import Home
from l40s_lab.life.request import Request
from l40s_lab.life.status import require
from l40s_lab.life.up import up
from l40s_lab.node.living import find_node
from l40s_lab.rehearsal.scenario import Scenario, Step
from orchestrator.model.words import counted
from orchestrator.protocol.errors import VerificationDiffers

Tell = Callable[[str], None]
INVENTORY = "rehearsal.yml"
_COMMAND_S = 600.0
_WITHIN_S = 30
_LOOK_EVERY_S = 0.5
_SHOWN = 600


@dataclass(frozen=True, slots=True)
class Ended:
    """A step with its result as text, and how long it took."""

    step: Step
    said: str
    seconds: float


def rehearse(scenario: Scenario, name: str, *, keep: bool, tell: Tell, told: Callable[[Ended], None]) -> float:
    """Run a scenario in a lab of this name, which is removed afterwards unless `keep` is set; returns seconds.

    tell: receives the lab's messages; told: receives each step that went as expected. Raises VerificationDiffers at the
    first step that did not, and DeployError if the lab or a fault is not available.
    """
    began = time.monotonic()
    stage = _Stage(scenario, name, tell)
    try:
        stage.build(scenario.lab)
        for step in scenario.steps:
            started = time.monotonic()
            said = stage.play(step)
            told(Ended(step, said, time.monotonic() - started))
    finally:
        if not keep:
            down(name)
    return time.monotonic() - began


class _Stage:
    def __init__(self, scenario: Scenario, name: str, tell: Tell) -> None:
        self.scenario = scenario
        self.name = name
        self.tell = tell
        self.inventory = Path()

    def build(self, wanted: Any) -> str:
        """Build the lab, and an inventory of it with the scenario's environment for engines."""
        raised = up(Request(name=self.name, **wanted), self.tell)
        self.inventory = _inventory(raised.home, self.scenario)
        return f"{counted(len(raised.blueprint.nodes), 'node')}, wiring {raised.blueprint.wiring_name}"

    def play(self, step: Step) -> str:
        """Do a step; returns its result."""
        return {
            "say": lambda: str(step.what),
            "lab": lambda: self.build({**self.scenario.lab, **step.what}),
            "run": lambda: self._run(step),
            "break": lambda: self._break(step),
            "heal": lambda: self._heal(step),
            "until": lambda: self._until(step),
            "nothing_left": lambda: self._nothing_left(step),
        }[step.kind]()

    def _break(self, step: Step) -> str:
        node, fault, *words = step.words
        return break_node(self.name, node, fault, words)

    def _heal(self, step: Step) -> str:
        node, *faults = step.words
        return ", ".join(heal_node(self.name, node, faults[0] if faults else None)) or "nothing was found"

    def _run(self, step: Step) -> str:
        done = self._command(step.words)
        wanted = step.more.get("exit", 0)
        if done.returncode != wanted:
            said = (done.stderr or done.stdout).strip()[-_SHOWN:]
            raise _differs(step, f"exit code {wanted}", f"{done.returncode}: {said}")
        if "findings" not in step.more:
            return f"exit code {done.returncode}"
        return self._findings(step, done.stdout)

    def _findings(self, step: Step, text: str) -> str:
        """Findings that stop or slow, in the order in which they were reported."""
        found = [one["id"] for one in json.loads(text)["findings"] if one["severity"] in ("stop", "slow")]
        told = list(dict.fromkeys(found))
        wanted = list(step.more["findings"])
        if missing := [one for one in wanted if one not in told]:
            raise _differs(step, ", ".join(wanted), f"{', '.join(told) or 'nothing'}; missing: {', '.join(missing)}")
        if step.more.get("nothing_else") and set(told) - set(wanted):
            raise _differs(step, f"{', '.join(wanted) or 'nothing'} and nothing else", ", ".join(told))
        return f"found {', '.join(told) or 'nothing that stops or slows'}"

    def _until(self, step: Step) -> str:
        began = time.monotonic()
        within = step.more.get("within_s", _WITHIN_S)
        while True:
            gangs = json.loads(self._command(["status"]).stdout or "{}").get("gangs", [])
            if gangs and all(gang["state"] == step.what for gang in gangs):
                return self._with_cause(step, gangs)
            if time.monotonic() - began > within:
                states = ", ".join(f"{gang['name']} {gang['state']}" for gang in gangs) or "no answer"
                raise _differs(step, f"{step.what} within {within} s", states)
            time.sleep(_LOOK_EVERY_S)

    def _with_cause(self, step: Step, gangs: list[dict[str, Any]]) -> str:
        wanted = step.more.get("cause", {})
        causes = [gang["cause"] or {} for gang in gangs]
        if not wanted:
            return str(step.what)
        if not any(all(cause.get(key) == value for key, value in wanted.items()) for cause in causes):
            raise _differs(step, f"the cause {wanted}", str(causes)[:_SHOWN])
        return f"{step.what}: {next(cause['text'] for cause in causes if cause)}"

    def _nothing_left(self, step: Step) -> str:
        began = time.monotonic()
        _, blueprint = require(self.name)
        nodes = [find_node(self.name, node) for node in blueprint.nodes]
        while left := {
            node.name: count
            for node in nodes
            if (count := len(node.ranks()) + len(node.agents()) + len(node.guardians()))
        }:
            if time.monotonic() - began > step.more.get("within_s", _WITHIN_S):
                raise _differs(
                    step, "no rank and no agent", ", ".join(f"{count} on {node}" for node, count in left.items())
                )
            time.sleep(_LOOK_EVERY_S)
        return "no rank and no agent on any node"

    def _command(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words, "--json", "-i", str(self.inventory)],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )


def _inventory(place: Home, scenario: Scenario) -> Path:
    document = yaml.safe_load(place.inventory.read_text())
    if scenario.env:
        document["all"]["vars"]["l40s_env"] = dict(scenario.env)
    path = place.path / INVENTORY
    files.put(path, yaml.safe_dump(document, sort_keys=False))
    return path


def _differs(step: Step, wanted: str, found: str) -> VerificationDiffers:
    return VerificationDiffers(
        f"wanted {wanted}, found {found}", where=step.where, fix="keep the lab for inspection with --keep"
    )
