"""The part of `make slice` in which one rank takes its GPU for an L40S (tests/slice/posing): served, then planted."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.gpu.stage import Otherwise, Stage, engine_python, find_node_in, with_what_was_seen
from tests.gpu.steps import Record
from tests.slice.lab import ALONE, GRAPHS, POSED, POSING, Wish, begin, keep_logs, logs, up
from tests.slice.playing import L40S_FLAGS, L40S_FREE_GIB, Told, make, watched, wrong_with
from tests.slice.watching import Ballast

HOOKS = Path(__file__).with_name("posing") / "sitecustomize.py"
SHARED = 101_376
"""Bytes of shared memory that an L40S gives a block."""
HOOKED = {"torch.cuda", "triton.backends.nvidia.driver", "triton.backends.nvidia.compiler"}
"""What must have taken hold in the rank's own process."""
CAUSE = "SM89-TRITON-TILES"
_PLANTED = re.compile(r"out of resource: shared memory, Required: (\d+), Hardware limit: (\d+)")


def as_an_l40s(stage: Stage, _: Record) -> Told:
    """The last gang is one rank: a start, the canary, all loads; then one with the tiles of SM80, which has to fail."""
    gang = f"gang{stage.lab.gangs - 1}"
    stage.run("down", gang, "--now")
    if stage.lab.real:
        make(stage, ALONE)
    node, which = stage.nodes_of(gang)[0], stage.gpus_of(gang)
    stage.lab.on(node, f"rm -rf {POSED} && mkdir -p {POSING} && cat >{POSING}/{HOOKS.name}", HOOKS.read_bytes())
    ballast, idle = Ballast(engine_python(real=True), L40S_FREE_GIB, which) if stage.lab.real else None, stage.gpus.idle
    figures: dict[str, Any] = {"graphs": GRAPHS[-1], "layout": "TP1, takes its GPU for an L40S"}
    try:
        with watched(stage, figures, gang) as watch:
            served = begin(stage, _wish(gang, "as-an-l40s"), figures, ballast)
            figures["start_outside"] = figures.pop("outside", [])
            figures["loads"] = served.loads(watch.mark)
            wrong = wrong_with(stage, served, figures) + _not_posed(stage, gang, figures)
        stage.run("down", gang, "--now")
        if ballast is not None:
            ballast.end()
        with with_what_was_seen(figures):
            wrong += _planted(stage, gang, figures)
    finally:
        keep_logs(stage, gang, "posed-end")
        _keep_seen(stage, node)
        stage.run("down", gang, "--now")
        stage.gpus.idle = idle
        if ballast is not None:
            ballast.end()
    return _told(wrong, figures)


def _wish(gang: str, pose: str) -> Wish:
    return Wish(ALONE, GRAPHS[-1], flags=L40S_FLAGS, gang=gang, pose=pose)


def _told(wrong: list[str], figures: dict[str, Any]) -> Told:
    speeds = ", ".join(f"{seen.get('decode_tok_s', 0):.0f} at {count}" for count, seen in figures["loads"].items())
    said = f"ready after {figures['up_s']:.0f} s; tok/s {speeds}"
    if kernels := figures.get("kernels"):
        most = max(seen["shared"] for seen in kernels.values())
        said += f"; {len(kernels)} Triton kernels as sm_89, at most {most:,} bytes of shared memory"
    said += f"; with SM80's tiles: {figures['planted'].get('message') or figures['planted']['state']}"
    if wrong:
        raise Otherwise(f"{'; '.join(wrong)}; {said}", **figures)
    return said, figures


def seen_in(text: str) -> list[dict[str, Any]]:
    """Lines of seen.jsonl; one that is not whole is left out."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def kernels_of(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Name of a Triton kernel that was loaded -> how many forms of it, and the most that any of them takes."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        if "kernel" in line:
            before = found.setdefault(line["kernel"], {"forms": 0, "shared": 0, "registers": 0, "spilled": 0})
            most = {name: max(before[name], line[name]) for name in ("shared", "registers", "spilled")}
            found[line["kernel"]] = {"forms": before["forms"] + 1, **most}
    return found


def not_as_asked(lines: list[dict[str, Any]]) -> list[str]:
    """In words, what shows that something did not take its GPU for an L40S."""
    wrong = [f"no hook took hold in {name}" for name in HOOKED - {line.get("hooked") for line in lines}]
    others = {line["ptx_for"] for line in lines if "ptx_for" in line} - {"sm_89"}
    wrong += [f"Triton compiled for {target}" for target in others]
    wrong += [f"{line['unwanted']} was loaded" for line in lines if "unwanted" in line]
    wrong += ["DeepGEMM is on" for line in lines if line.get("deep_gemm")]
    large = {line["kernel"] for line in lines if line.get("kernel") and line["shared"] > SHARED}
    wrong += [f"{name} takes more shared memory than an L40S has" for name in sorted(large)]
    tiles = {tuple(line["attention_for"] or ()) for line in lines if "attention_for" in line}
    return wrong if tiles <= {(8, 9)} else [*wrong, f"extend attention takes the tiles of {sorted(tiles)}"]


def _lines(stage: Stage, gang: str) -> list[dict[str, Any]]:
    file = find_node_in(stage.lab, stage.nodes_of(gang)[0]).file(f"{POSED}/seen.jsonl")
    return seen_in(file.read_text()) if file.exists() else []


def _not_posed(stage: Stage, gang: str, figures: dict[str, Any]) -> list[str]:
    if not stage.lab.real:
        return []
    lines = _lines(stage, gang)
    figures["kernels"] = kernels_of(lines)
    figures["hooked"] = sorted({line["hooked"] for line in lines if "hooked" in line})
    figures["log"] = {
        name: sorted({found.strip()[:160] for text in logs(stage, gang).values() for found in re.findall(words, text)})
        for name, words in {"device": r".*NVIDIA L40S.*", "real device": r".*NVIDIA H\d+.*"}.items()
    }
    return not_as_asked(lines)


def _planted(stage: Stage, gang: str, figures: dict[str, Any]) -> list[str]:
    """The same with an A100's tiles in extend attention: in words, where it did not fail as the articles saw it."""
    began = time.monotonic()
    code = up(stage, _wish(gang, "with-tiles-of-sm80"), [], None)
    found = stage.gang(gang)
    cause = found["cause"] or {}
    messages = [match for text in logs(stage, gang).values() for match in _PLANTED.finditer(text)]
    keep_logs(stage, gang, "posed-planted")
    figures["planted"] = {
        "up_exit": code,
        "seconds": round(time.monotonic() - began, 1),
        "state": found["state"],
        "message": messages[0][0] if messages else "",
        "cause": [cause.get(name) for name in ("id", "node", "tp_rank", "text")],
    }
    if not stage.lab.real:
        return []
    wrong = [] if code else ["a start with the tiles of SM80 ended well"]
    if not messages or int(messages[0][2]) != SHARED:
        wrong.append("no message of shared memory as an L40S has it")
    return wrong if cause.get("id") == CAUSE else [*wrong, f"its cause is {cause.get('id')}, not {CAUSE}"]


def _keep_seen(stage: Stage, node: str) -> None:
    """With the PTX that was run, for a ptxas that is asked what an L40S would make of it."""
    posed = find_node_in(stage.lab, node).file(POSED)
    if (posed / "seen.jsonl").exists():
        shutil.copy(posed / "seen.jsonl", stage.kept / "posed-seen.jsonl")
    for number, ptx in enumerate(sorted((posed / "triton").rglob("*.ptx"))):
        (stage.kept / "ptx").mkdir(exist_ok=True)
        shutil.copy(ptx, stage.kept / "ptx" / f"{number}-{ptx.name}")
