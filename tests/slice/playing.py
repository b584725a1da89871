"""What parts of `make slice` share: the files made, memory watched, and what makes a part fail."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.stage import MODELS, Otherwise, Stage, engine_python, with_what_was_seen
from tests.slice import engine_log, judging
from tests.slice.lab import BLOCKS, Served, SliceLab, logs
from tests.slice.watching import Cards, Watch

Told = tuple[str, dict[str, Any]]
L40S_FREE_GIB = 44.5
"""What CUDA may have of an L40S before an engine starts: with what the driver keeps, NVML's 46,068 MiB."""
L40S_FRACTION = "0.765"
"""What SGLang takes for itself on a card of that size with this chunk."""
L40S_CHUNK = "4096"
L40S_FLAGS = ("--mem-fraction-static", L40S_FRACTION, "--chunked-prefill-size", L40S_CHUNK)
FILES_OF_A_RANK = 58 << 30
"""Bytes of the models a rank while the original is there beside the re-blocked one."""
MAKERS = 40
"""Processes that write the files; RAM takes what they make."""


def make(stage: Stage, directory: str) -> dict[str, float]:
    """What the maker says; {} where it is there already."""
    assert isinstance(stage.lab, SliceLab)
    if there(directory):
        return {}
    cut = (stage.lab.cut_for(directory), stage.lab.layers, BLOCKS[directory], MAKERS)
    words = [engine_python(real=True), "-m", "tests.slice.model", str(MODELS / directory), *map(str, cut)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Otherwise(f"{directory} was not made: {done.stderr[-400:]}")
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def there(directory: str) -> bool:
    """config.json is written last."""
    return (MODELS / directory / "config.json").exists()


def in_ram(folder: Path, ranks: int) -> bool:
    """Whether the model's files lie in RAM. An empty folder is put there where all of them fit into a half of it."""
    wanted = ranks * FILES_OF_A_RANK
    found = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False)
    if found.stdout.strip() == "tmpfs":
        return True
    if any(folder.iterdir()) or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2 * wanted:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={wanted}", "tmpfs", str(folder)]
    return subprocess.run(mount, check=False).returncode == 0


@contextmanager
def watched(stage: Stage, figures: dict[str, Any], gang: str = "") -> Iterator[Watch]:
    """Memory and clocks meanwhile, in the figures; what goes otherwise has them all. gang: only of its GPUs"""
    assert isinstance(stage.gpus, Cards)
    watch = Watch(stage.gpus, stage.gpus_of(gang) if gang else None)
    with with_what_was_seen(figures):
        try:
            yield watch
        finally:
            figures["memory"] = watch.ended()


def wrong_with(stage: Stage, served: Served, figures: dict[str, Any]) -> list[str]:
    """Where memory is not as planned or ran out, or a healthy node was called behind. Raises Otherwise where the gang
    no longer serves, or goes on with another text."""
    texts = list(logs(stage, served.gang).values())
    wrong = judging.off(figures.get("plan_above_engine", {})) if stage.lab.real else []
    wrong += figures.get("outside", []) if stage.lab.real else []
    wrong += [f"out of memory: {line}" for line in engine_log.out_of_memory(texts)]
    wrong += [f"a healthy node is called behind: {words}" for words in figures.get("called_behind", ())]
    if (state := stage.gang(served.gang)["state"]) != "ready":
        raise Otherwise("; ".join([*wrong, f"status says {state} at the end"]), **figures)
    stage.continues(served.url, **figures)
    return wrong


def right(wrong: list[str], figures: dict[str, Any]) -> Told:
    """What a part says at its end. Raises Otherwise where something is wrong."""
    if wrong:
        raise Otherwise(f"{'; '.join(wrong)}; {sentence(figures)}", **figures)
    return sentence(figures), figures


def sentence(figures: dict[str, Any]) -> str:
    speeds = ", ".join(f"{seen.get('decode_tok_s', 0):.0f} at {count}" for count, seen in figures["loads"].items())
    least = figures["memory"].get("least_free_gib")
    free = "" if least is None else f"; at least {least:.2f} GiB of a card stayed free"
    said = f"ready after {figures['up_s']:.0f} s; tok/s {speeds}{free}"
    off = figures.get("plan_above_engine", {})
    words = ", ".join(f"{name.replace('_', ' ')} {off[name]:+.1%}" for name in ("weights", "kv_tokens") if name in off)
    return f"{said}; plan against engine: {words}" if words else said


def profiles(served: Served, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """None of a stand-in."""
    return [_profile(served, requests) for requests in counts] if served.stage.lab.real else []


def _profile(served: Served, requests: int) -> dict[str, Any]:
    """What could not be profiled says why, and the part goes on."""
    try:
        return served.profiled(requests)
    except (Otherwise, OSError, ValueError) as error:
        return {"requests": requests, "failed": str(error)}
