"""`python -m tests.gpu [--steps A,B] [--seconds S] [--figures FILE] [--rehearse|--prepare|--page]`: the proof on GPUs.

Needs root, 2 NVIDIA GPUs or more, and the engine of tests/gpu/kit (scripts/gpu_kit.py carries it to a machine without a
network). Steps that FILE has already are left out, so that several calls make one proof; --steps plays the named ones
again. Writes measured.md from FILE. --rehearse plays it with the lab's stand-in, without a GPU and without a page.
Skips, loudly and with exit code 0, where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.gpu import page
from tests.gpu.figures import Figures, Result
from tests.gpu.stage import HOME, MODELS, ORIGINAL, REBLOCKED, STACK, GpuLab, Gpus, Stage, engine_python
from tests.gpu.steps import STEPS, Step, model_made, not_done, played
from tests.support import proven
from tests.support.preloaded import L40S_DEPLOY

FIGURES = Path(__file__).parent / "figures.json"
CLOSING_S = 20.0
"""Kept back from a call's time to end everything."""


def main(words: list[str]) -> int:
    args = _arguments(words)
    began = time.monotonic()
    figures = Figures.of(args.figures)
    if args.page:
        page.PAGE.write_text(page.page(figures), "utf-8")
        print(f"wrote {page.PAGE}")
        return 0
    gpus = Gpus()
    why_not = unplayable(gpus, least=1 if args.steps else 2, rehearse=args.rehearse)
    if why_not:
        print(f"SKIPPED: the proof on GPUs was not played: {why_not}", file=sys.stderr)
        return 0
    if not args.rehearse:
        prepare()
        figures.machine = {**figures.machine, **machine(gpus)}
        if args.prepare:
            return 0
    chosen = _chosen(args, figures)
    folder = Path(tempfile.mkdtemp(prefix="gpu-proof-"))
    lab = GpuLab("gpu", real=not args.rehearse, deaths="cuda" if args.rehearse else "plain", root=folder / "labs")
    stage = Stage(lab, gpus, args.rehearse or len(gpus), began + args.seconds - CLOSING_S, print, args.kept)
    play(chosen, stage, figures)
    figures.write()
    if not args.rehearse:
        page.PAGE.write_text(page.page(figures), "utf-8")
        proven.record("kills", page.kills_in_short(figures))
        print(f"wrote {page.PAGE}")
    return 1 if figures.wrong() else 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", default="", help=", ".join(step.name for step in STEPS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing that may take longer")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument(
        "--kept", type=Path, default=Path("/tmp/gpu-proof"), help="events and logs of what went otherwise"
    )
    parser.add_argument(
        "--rehearse",
        type=int,
        nargs="?",
        const=4,
        default=0,
        metavar="GPUS",
        help="with the stand-in, as if of so many",
    )
    parser.add_argument("--prepare", action="store_true", help="make the checkpoints and their reference, and end")
    parser.add_argument("--page", action="store_true", help="write tests/gpu/measured.md and end")
    return parser.parse_args(words)


def unplayable(gpus: Gpus, *, least: int, rehearse: int) -> str:
    """Why nothing can be played; '' where it can. Named steps of one gang can be with one GPU."""
    if os.geteuid() != 0:
        return "a lab with namespaces needs root"
    if rehearse:
        return ""
    if len(gpus) < least:
        return f"found {len(gpus)} NVIDIA GPUs, wanted {least} or more"
    python = Path(engine_python(real=True))
    return "" if python.exists() else f"no engine: no {python}; scripts/gpu_kit.py and scripts/gpu_install.py bring it"


def prepare() -> None:
    """Both checkpoints; their reference is computed beside what follows."""
    HOME.mkdir(parents=True, exist_ok=True)
    MODELS.mkdir(parents=True, exist_ok=True)
    python = engine_python(real=True)
    if not model_made():
        here = [python, "-m", "tests.gpu.checkpoint", "make", str(MODELS / ORIGINAL), "128"]
        subprocess.run(here, check=True)
        reblock = [
            "checkpoint",
            "reblock",
            str(MODELS / ORIGINAL),
            str(MODELS / REBLOCKED),
            "--block",
            "64",
            "--verify",
        ]
        subprocess.run([*L40S_DEPLOY, *reblock], check=True)
    if not (HOME / "reference.json").exists():
        threading.Thread(target=_reference, args=(python,)).start()


def _reference(python: str) -> None:
    new = HOME / "reference.new"
    words = [python, "-m", "tests.gpu.checkpoint", "reference", str(MODELS / REBLOCKED), str(new)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "16"}
    with (HOME / "reference.log").open("w") as log:
        if subprocess.run(words, stdout=log, stderr=log, env=environment, check=False).returncode == 0:
            new.replace(HOME / "reference.json")


def machine(gpus: Gpus) -> dict[str, Any]:
    """What the figures were measured on."""
    names = sorted(set(gpus.names()))
    said = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "gpus": f"{len(gpus)} x {' and '.join(names)}, one host",
        "driver": gpus.driver(),
        "kernel": said.split("-")[0],
        "processors": os.cpu_count(),
        "engine": _engine(),
        "router": "smg 1.13.0",
        "date": time.strftime("%Y-%m-%d"),
    }


def _engine() -> str:
    stack = yaml.safe_load(STACK.read_text("utf-8"))
    return f"SGLang {stack['engine_version']} on torch {stack['torch_version']}, mixed with the machine's CUDA 13.0"


def _chosen(args: argparse.Namespace, figures: Figures) -> list[Step]:
    names = [name.strip() for name in args.steps.split(",") if name.strip()]
    if unknown := set(names) - {step.name for step in STEPS}:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in STEPS)}")
    missing = set(names or figures.missing(step.name for step in STEPS))
    return [step for step in STEPS if step.name in missing and not (args.rehearse and step.alone)]


def play(chosen: Sequence[Step], stage: Stage, figures: Figures) -> None:
    """These steps, one after the other; then the lab is removed, and its folder."""
    stage.kept.mkdir(parents=True, exist_ok=True)
    count, lock = stage.count, threading.Lock()

    def record(result: Result) -> None:
        with lock:
            figures.add(result)
            print(_line(result), flush=True)

    try:
        for step in chosen:
            if count < step.gpus:
                result = not_done(step.name, f"found {count} GPUs, wanted {step.gpus}")
            elif stage.left_s < step.needs_s:
                result = not_done(step.name, f"{stage.left_s:.0f} s left, {step.needs_s:.0f} wanted")
            else:
                print(f"[{stage.left_s:4.0f} s left] {step.name}: {step.what}", flush=True)
                result = played(step.name, lambda step=step: _one(stage, step, record))  # type: ignore[misc]
            record(result)
    finally:
        _close(stage)
        shutil.rmtree(stage.lab.folder, ignore_errors=True)


def _one(stage: Stage, step: Step, record: Any) -> tuple[str, dict[str, Any]]:
    if step.shape is not None:
        stage.take(step.shape(stage.count))
    return step.play(stage, record)


def _close(stage: Stage) -> None:
    """The router first; everything else goes with the lab."""
    with contextlib.suppress(Exception):
        stage.stop_router()
    with contextlib.suppress(Exception):
        if stage.lab.real:
            stage.save_caches()
    stage.lab.run("down")
    print(f"the lab is gone; memory in use: {stage.gpus.used()} MiB, before: {stage.gpus.idle}", flush=True)


def _line(result: Result) -> str:
    return f"{result.outcome:12} {result.step:18} {result.seconds:6.1f} s  {result.said}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
