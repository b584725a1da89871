"""`python -m tests.tp32 [--ranks N] [--nodes N] [--steps A,B]`: 32 ranks of the real SGLang, on CPU, as one gang.

Needs root and about 0.6 GB of memory a rank. The steps are those of tests/gpu, in a lab of `lab up --engine sglang
--ranks 8`. What FILE has already is left out, so that several calls make one proof; --steps plays named ones, or all,
again. With 32 ranks it writes tp32.md and its row of docs/proven.yml; with fewer it is a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.gpu import page
from tests.gpu.__main__ import CLOSING_S, play
from tests.gpu.figures import Figures
from tests.gpu.stage import Gone, GpuLab, Gpus, Otherwise, Shape, Stage, find_node_in, with_what_was_seen
from tests.gpu.steps import Play, Record, Step, files, freeze, kill, rolling
from tests.gpu.survive import without_its_leader
from tests.support import proven
from tests.support.router import router_environment
from tests.support.small_lab import SmallLab

from l40s_lab.engine.environment import ENGINE_STACK
from l40s_lab.engine.model import WIDE
from l40s_lab.processes import Identity

HERE = Path(__file__).parent
FIGURES = HERE / "figures.json"
COMPLETE = 32
LEASE_S = 45
"""An agent beside eight starting ranks of a node gets little of two processors."""
FREED = 0.9
"""What the processes held counts as free when the machine has this part of it back: others use it too."""
GENTLE: dict[str, Any] = {"patience": 6.0, "clients": 2, "tokens": 4, "pause_s": 10.0}
"""Of the stage: ranks that answer all the time leave those that start a tenth of the processors."""
PHASES = ("rendezvous", "weights", "kv-cache", "warm-up")
"""Of an engine on CPU; nodes other than the first show neither the rendezvous's begin nor a warm-up in their logs."""
NO_KERNELS = "AMX"
"""In the engine's own words (process_weights_after_loading of sglang 0.5.23's fp8.py and w8a8_int8.py)."""

SEMAPHORE = "/dev/shm/sem.mp-"
"""Of Python's multiprocessing: a process that is killed can't unlink its own, 32 bytes each."""

_HEAD = """\
# 32 ranks of the real SGLang

Written by `make tp32` (tests/tp32): `lab up --engine sglang --ranks 8`, four emulated nodes with 8 ranks each, one gang
of TP32 over TCP on one machine, without a GPU. The model is a DeepSeek-V3 of 147 MB in bf16 with V3's own widths of a
head and of the feed-forward parts: a rank has 576 of 18432 and 64 of 2048. It says nothing about GPUs, RDMA or speed.

In *formats* the same model is started as block FP8 64x64 and as channel INT8 (`--json-model-override-args`,
`--quantization`). Both are cut for 32 ranks and loaded, and end where the engine wants AMX: it has no other kernels for
them on a CPU. Blocks of 128x128, which SGLang refuses on GPUs, it does not refuse here: on a CPU it widens these parts
to whole blocks (configs/update_config.py). Its check itself is called in tests/engine. The bf16 weights stand for
their values, so nothing is said about what they compute.
"""


@dataclass
class CpuLab(GpuLab):
    """The real engine on CPU; `gpus` is the number of a node's ranks."""

    engine: str = "sglang"
    real: bool = True
    name_of_model: str = WIDE.name

    def profile_of(self, model: str) -> str:
        return model

    def up(self) -> None:
        self.ranks = self.gpus
        SmallLab.up(self)

    def write_inventory(self, **more: Any) -> None:
        super().write_inventory(**{**more, "vars": {"l40s_lease": LEASE_S, **more.get("vars", {})}})

    def router_venv(self) -> Path | None:
        return router_environment()


class Memory(Gpus):
    """This machine's memory in the place of that of GPUs."""

    def __init__(self) -> None:
        self.idle = self.used()
        self.enough = self.idle

    def __len__(self) -> int:
        return 1

    def used(self) -> list[int]:
        have = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return [(int(have["MemTotal"].split()[0]) - int(have["MemAvailable"].split()[0])) >> 10]

    def held(self, processes: list[Identity]) -> int:
        """MiB that they hold, shared pages in parts; from now on free is what is left without them."""
        held = sum(map(_pss_kib, processes)) >> 10
        self.enough = [self.used()[0] - int(FREED * held)]
        return held

    def free(self, which: list[int]) -> bool:
        return self.used() <= self.enough


class CpuStage(Stage):
    """No kernels are compiled that the next lab could take over."""

    def save_caches(self) -> None:
        pass

    def engine(self, gang: str | None = None) -> list[Identity]:
        found = super().engine(gang)
        self.gpus.held(found)  # type: ignore[attr-defined]
        return found


def up(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """From nothing to ready, every phase on every node, every rank on its node, the canary and the alphabet."""
    took = stage.up("--replace")
    gang = stage.gang()
    ranks = {node["name"]: [rank["tp_rank"] for rank in node["ranks"]] for node in gang["nodes"]}
    alive = sum(rank["state"] == "alive" for node in gang["nodes"] for rank in node["ranks"])
    memory = Memory()
    figures = {"up_s": round(took, 1), "start": gang["start"], "alive": alive, "held_mib": memory.held(stage.engine())}
    each = stage.lab.gpus
    if list(ranks.values()) != [[*range(first, first + each)] for first in range(0, each * len(ranks), each)]:
        raise Otherwise(f"ranks are {ranks}", **figures)
    if alive != each * len(ranks):
        raise Otherwise(f"{alive} ranks are alive", **figures)
    figures["phases"] = {node: _phases(stage, node) for node in ranks}
    if tuple(gang["start"]["phases"]) != PHASES or any({*PHASES[1:3]} - {*told} for told in figures["phases"].values()):
        raise Otherwise(f"phases are {', '.join(gang['start']['phases'])}; by node {figures['phases']}", **figures)
    stage.continues(str(gang["service"]["url"]), **figures)
    said = f"{alive} ranks ready after {took:.0f} s, every phase told; the canary is right"
    return f"{said}; they hold {figures['held_mib'] / 1024:.1f} GiB", figures


def _phases(stage: Stage, node: str) -> list[str]:
    """As its agent's newest run tells of them."""
    runs = find_node_in(stage.lab, node).file("/var/lib/l40s-deploy/gangs").glob("gang0/runs/*/events.jsonl")
    events = map(json.loads, max(runs, key=lambda file: file.parent.name).read_text().splitlines())
    return list(dict.fromkeys(str(event["name"]) for event in events if event["event"] == "phase"))


def formats(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """The same model as if it were quantised: how far the engine gets."""
    figures: dict[str, str] = {}
    amx = "" if "amx_tile" in Path("/proc/cpuinfo").read_text() else NO_KERNELS
    for kind, words in _kinds(stage.lab.nodes * stage.lab.gpus).items():
        done = stage.run("up", "--model", stage.lab.model, "--replace", "--", *words, timeout=stage.left_s - 15)
        figures[kind] = "ready" if done.returncode == 0 else " ".join(stage.gang()["cause"]["lines"][-1:])
        if amx not in figures[kind]:
            raise Otherwise(f"{kind} did not end with {amx!r}: {figures[kind]}", **figures)
        if left := stage.engine() if done.returncode else []:
            raise Otherwise(f"{kind}: {len(left)} processes left", **figures)
    return "; ".join(f"{kind}: {told}" for kind, told in figures.items()), dict(figures)


def _kinds(ranks: int) -> dict[str, tuple[str, str]]:
    """The engine's flags. With fewer ranks the blocks are larger by as much."""
    size = [64 * COMPLETE // ranks] * 2
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": size}
    override = json.dumps({"quantization_config": config})
    return {
        f"FP8 {size[0]}x{size[1]}": ("--json-model-override-args", override),
        "INT8 channel": ("--quantization", "w8a8_int8"),
    }


def killed(number: int) -> Play:
    """The last rank of this node: its cause, every process gone, their memory free."""

    def play_it(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
        each, nodes = stage.lab.gpus, stage.lab.nodes
        result = kill(stage, f"gang{number // nodes}", number % nodes * each + each - 1, load=False)
        record(result)
        dead, free = (result.figures.get(name) for name in ("processes_dead_s", "memory_free_s"))
        if result.outcome != "as it should" or dead is None or free is None:
            raise Otherwise(f"{result.said}; processes gone after {dead} s, memory free after {free} s")
        return f"{result.said}; every process gone after {dead} s, their memory free after {free} s", {}

    return play_it


def power(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """A node's power, with a guard beside: served without it, and with it again."""
    stage.ready()
    figures: dict[str, Any] = {}
    with with_what_was_seen(figures):
        return without_its_leader(stage, figures), figures


def restart(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """The gang as a whole."""
    stage.ready()
    old, began = stage.engine(), time.monotonic()
    done = stage.run("restart", timeout=stage.left_s - 10)
    took, gang = time.monotonic() - began, stage.gang()
    left = [one.pid for one in old if one.alive]
    figures = {"restart_s": round(took, 1), "start": gang["start"]}
    if done.returncode or left or gang["state"] != "ready":
        raise Otherwise(f"restart ended with {done.returncode}; {len(left)} old processes left", **figures)
    return f"ready again after {took:.0f} s, with new processes only", figures


def down(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """No process, memory or file is left."""
    gone = Gone(stage.engine(), stage.gpus, [])
    done = stage.run("down", "--all", timeout=90 * stage.patience)
    left = [file for place in ("/dev/shm", "/tmp") for file in files(stage, place)]
    orphans = [file for file in left if SEMAPHORE in file]
    figures = {**gone.figures(), "left": left[:6], "semaphores": len(orphans)}
    if done.returncode or None in gone.figures().values() or len(left) > len(orphans):
        raise Otherwise(f"down ended with {done.returncode}, {len(left)} files left", **figures)
    told = f"; of the rank killed before, {len(orphans)} semaphores stay in /dev/shm" if orphans else ""
    return f"every process gone after {figures['processes_dead_s']} s, their memory free, no file left{told}", figures


def both(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
    """Two gangs of half the ranks behind the router, restarted one after the other under load."""
    up_s = round(stage.up(), 1)
    said, figures = rolling(stage, record)
    return said, {"up_s": up_s, **figures}


def steps(nodes: int) -> tuple[Step, ...]:
    """On so many nodes; each failure is followed by a step that needs a start anyway, since starts take the time."""

    def one(ranks: int) -> Shape:
        return Shape(1, nodes, ranks)

    def two(ranks: int) -> Shape:
        return Shape(2, nodes, ranks)

    *kills, last = (
        Step(f"kill on node{number}", "its last rank", killed(number), two if number == nodes - 1 else one)
        for number in range(nodes)
    )
    failures = (
        Step("hang", "a rank stopped, and the gang restarted by the guard", lambda stage, _: freeze(stage), one),
        Step("power", "a node lost, served on without it, restored", power, one),
    )
    return (
        Step("up", "from nothing to ready", up, one),
        *(step for pair in zip_longest(kills[:2], failures) for step in pair if step),
        Step("restart", "the gang as a whole", restart, one),
        *kills[2:],
        Step("formats", "block FP8 and channel INT8, as far as the engine gets", formats, one),
        Step("rolling", "two gangs of half the ranks behind the router, under load", both, two),
        last,
        Step("down", "nothing left", down, two),
    )


def main(words: list[str]) -> int:
    args = _arguments(words)
    chosen = steps(args.nodes)
    figures = Figures.of(args.figures)
    if not args.page:
        figures.machine = {**figures.machine, **machine()}
        names = [step.name for step in chosen]
        wanted = names if args.steps == "all" else args.steps.split(",") if args.steps else figures.missing(names)
        if unknown := set(wanted) - set(names):
            sys.exit(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        lab = CpuLab(f"tp32-{os.getpid()}", Path(tempfile.mkdtemp(prefix="tp32-")) / "labs")
        until = time.monotonic() + args.seconds - CLOSING_S
        stage = CpuStage(lab, Memory(), args.ranks, until, print, args.kept, **GENTLE)
        play([step for step in chosen if step.name in wanted], stage, figures)
        figures.write()
    if args.page or (args.figures == FIGURES and not figures.missing(step.name for step in chosen)):
        head = "\n".join([_HEAD, *starts(figures), "## Machine", ""])
        (HERE / "tp32.md").write_text(page.page(figures, head), "utf-8")
        print(f"wrote {HERE / 'tp32.md'}")
        if figures.passed("up"):
            proven.record("tp32", in_short(figures), "make tp32")
    return 1 if figures.wrong() else 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.tp32", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--ranks", type=int, default=8, choices=range(2, 9), metavar="N", help="of each node, 2 to 8 (default: 8)"
    )
    parser.add_argument("--nodes", type=int, default=4, help="default: 4")
    parser.add_argument("--steps", default="", help=f"all, or some of {', '.join(step.name for step in steps(4))}")
    parser.add_argument("--seconds", type=float, default=10800.0, help="begin nothing after this time")
    parser.add_argument("--figures", type=Path, default=None)
    parser.add_argument("--kept", type=Path, default=Path("/tmp/tp32-proof"), help="logs of what went otherwise")
    parser.add_argument("--page", action="store_true", help="write tp32.md and end")
    args = parser.parse_args(words)
    args.figures = args.figures or (FIGURES if args.nodes * args.ranks == COMPLETE else args.kept / "figures.json")
    return args


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    processor = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    commit = ["git", "rev-parse", "--short", "HEAD"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "gpus": f"{os.cpu_count()} processors, {processor}",
        "memory": f"{total / 1e9:.0f} GB",
        "kernel": os.uname().release.split("-")[0],
        "engine": f"stack {ENGINE_STACK}: SGLang 0.5.23 on torch 2.13.0, CPU",
        "commit": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def starts(figures: Figures) -> Iterator[str]:
    """Seconds of each start, by phase."""
    yield "## Starts, seconds by phase"
    yield ""
    yield f"| step | {' | '.join(PHASES)} | all |"
    yield "|---" * (len(PHASES) + 2) + "|"
    for result in figures.results:
        for name, start in result.figures.items():
            if isinstance(start, dict) and "phases" in start:
                cells = [str(start["phases"].get(phase, "")) for phase in PHASES]
                yield f"| {result.step}: {name} | {' | '.join(cells)} | {start['seconds']} |"
    yield ""


def in_short(figures: Figures) -> str:
    """'ready in 256 s on 2 processors, 4 of 4 killed ranks named'."""
    kills_, last = figures.of_step("kill"), figures.of_step("up")[-1]
    right = sum(one.outcome == "as it should" for one in kills_)
    ready = f"ready in {last.figures.get('up_s', 0):.0f} s on {last.gpus.partition(',')[0]}"
    return f"{ready}, {right} of {len(kills_)} killed ranks named"


def _pss_kib(process: Identity) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
