"""Where the proof plays: a lab of real GPUs, or of the stand-in for a rehearsal; commands, and an onlooker's view."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.gpu import checkpoint
from tests.support.load import Load, complete
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab

from l40s_lab.node.living import find_node
from l40s_lab.processes import Identity, wait_until
from orchestrator.protocol.errors import DeployError

KIT = Path(__file__).parent / "kit"
STACK = KIT / "sglang-0.5.23-triton.yml"
HOME = Path("/opt/l40s-gpu")
ROUTER_VENV = Path("/opt/l40s/venvs/smg-1.13.0")
ROUTER_PORT = 30280
MODELS = Path("/workspace")
ORIGINAL, REBLOCKED = "gpu-proof-128", "gpu-proof-64"
BLOCKS = {ORIGINAL: 128, REBLOCKED: 64}
CACHES = ("/var/lib/l40s-deploy/cache", "/root/.cache", "/root/.triton")
"""Compiled kernels, on a node: a lab of another shape takes them over."""
SLACK_MIB = 64
"""What the driver itself may hold more than before."""
_ENGINE = (b"sglang::", b"sglang.launch_server", b"standin")


class Otherwise(Exception):
    """It went otherwise than it should; in words. figures: what was seen until then."""

    def __init__(self, said: str, **figures: Any) -> None:
        super().__init__(said)
        self.figures = figures


@contextlib.contextmanager
def with_what_was_seen(figures: dict[str, Any]) -> Iterator[None]:
    """What goes otherwise inside is told with these figures too, as they are then."""
    try:
        yield
    except Otherwise as error:
        error.figures = {**figures, **error.figures}
        raise


@dataclass(frozen=True)
class Shape:
    """So many gangs, nodes in all, and GPUs on each."""

    gangs: int
    nodes: int
    gpus_each: int


class Gpus:
    """Memory in use on the machine's GPUs, in MiB; without NVML none, and nothing is said about memory."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(place) for place in range(pynvml.nvmlDeviceGetCount())]
        self.idle = self.used()

    def __len__(self) -> int:
        return len(self._handles)

    def used(self) -> list[int]:
        return [self._nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20 for handle in self._handles]

    def processes(self) -> list[dict[int, int]]:
        """GPU by GPU: process id on this machine -> MiB."""
        return [
            {one.pid: (one.usedGpuMemory or 0) >> 20 for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            for handle in self._handles
        ]

    def free(self, which: list[int]) -> bool:
        """Nobody holds memory on these."""
        used = self.used()
        return all(used[place] <= self.idle[place] + SLACK_MIB for place in which if place < len(used))

    def names(self) -> list[str]:
        return [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion()) if self._nvml else ""


@dataclass
class GpuLab(SmallLab):
    """The product's own lab and commands. real: on this machine's GPUs, with the kit's engine."""

    real: bool = False
    name_of_model: str = REBLOCKED
    stack: Path = STACK

    @property
    def model(self) -> str:
        return self.profile_of(self.name_of_model)

    def profile_of(self, model: str) -> str:
        """The argument of `up --model`."""
        return str(self.folder / f"{model}.yml")

    def shape(self, shape: Shape) -> None:
        """Another lab in the place of the one that is there."""
        self.gangs, self.nodes, self.gpus = shape.gangs, shape.nodes // shape.gangs, shape.gpus_each
        self.up()

    def up(self) -> None:
        for name, block in BLOCKS.items():
            profile = checkpoint.profile(block, name)
            if not self.real:
                profile["canary"]["expect_any"] = ["stand-in"]
            (self.folder / f"{name}.yml").write_text(yaml.safe_dump(profile))
        if not self.real:
            super().up()
            return
        (self.folder / "labs").mkdir(exist_ok=True)
        words = ("--gangs", str(self.gangs), "--nodes", str(self.gangs * self.nodes))
        self.run("up", "--gpus", "host", "--stack", str(self.stack), *words)
        self.write_inventory()

    def place_model(self, node: str) -> None:
        for name, block in BLOCKS.items():
            place = MODELS / name
            document = json.dumps(checkpoint.config(block))
            self.on(node, f"mkdir -p {place} && cd {place} && touch .standin && cat >config.json", document.encode())

    def write_inventory(self, **more: Any) -> None:
        """With the router on this machine where it is installed."""
        document = self.lab_inventory()
        if env := {**({} if self.real else {"STANDIN_SPEED": "0.2"}), **self.env}:
            document["all"]["vars"]["l40s_env"] = env
        if self.gangs > 1 and (venv := self.router_venv()) is not None:
            from tests.support.router import router_group

            group = router_group(venv, self.folder / "router", ROUTER_PORT)
            document["all"]["children"]["router"] = group
        document["all"]["vars"] |= more.pop("vars", {})
        document["all"]["children"] |= more
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def router_venv(self) -> Path | None:
        """Where the router is installed: by the kit, or for a rehearsal by the tests' own support."""
        if self.real:
            return ROUTER_VENV if (ROUTER_VENV / "bin/python3").exists() else None
        from tests.support.router import NotInstalled, router_environment

        try:
            return router_environment()
        except NotInstalled:
            return None


@dataclass
class Stage:
    """One call of the proof. until: when it has to be over, on the monotonic clock; say: one line to who watches.

    patience: multiplies the time limits of a GPU machine; clients, tokens, pause_s (between two requests): of the load
    """

    lab: GpuLab
    gpus: Gpus
    count: int
    until: float
    say: Callable[[str], None]
    kept: Path
    """Folder for what is worth keeping of runs that went otherwise."""
    shape: Shape | None = None
    patience: float = 1.0
    clients: int = 8
    tokens: int = 16
    pause_s: float = 0.0
    _saved: bool = field(default=False)

    @property
    def compiled_before(self) -> bool:
        """Some engine of this machine left compiled kernels, here or on this lab's nodes."""
        return self._saved or any(self._cache(place).is_dir() for place in CACHES) or self._ran_before

    @property
    def _ran_before(self) -> bool:
        with contextlib.suppress(DeployError, OSError):
            return any(find_node_in(self.lab, "node0").file(CACHES[0]).iterdir())
        return False

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    def take(self, shape: Shape) -> None:
        """A lab of this shape, with the compiled kernels of the one before."""
        if self.shape == shape:
            return
        if self.shape is not None:
            self.save_caches()
            self.stop_router()
        self.lab.shape(shape)
        self.shape = shape
        for node in self.lab.hosts():
            self.restore_caches(node)

    def stop_router(self) -> None:
        """It runs on this machine and outlives its lab."""
        if self.shape is not None and self.shape.gangs > 1:
            self.run("router", "down", timeout=15)

    def save_caches(self) -> None:
        """From the first node, once a kernel was compiled."""
        for place in CACHES:
            with contextlib.suppress(DeployError, OSError, shutil.Error):
                source = find_node_in(self.lab, "node0").file(place)
                if source.is_dir():
                    shutil.copytree(source, self._cache(place), dirs_exist_ok=True)
                    self._saved = True

    def restore_caches(self, node: str) -> None:
        for place in CACHES:
            if self._cache(place).is_dir() and self.lab.real:
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(self._cache(place), find_node_in(self.lab, node).file(place), dirs_exist_ok=True)

    def _cache(self, place: str) -> Path:
        return HOME / "caches" / place.strip("/").replace("/", "_")

    # -- commands

    def gang(self, name: str = "gang0") -> dict[str, Any]:
        """One gang of `status --json`."""
        gangs: list[dict[str, Any]] = self.lab.json("status")["gangs"]
        return next(gang for gang in gangs if gang["name"] == name)

    def ready(self, gang: str = "gang0", *flags: str, model: str = "") -> float:
        """Have a gang ready with this model; returns how long `up` took, 0 where it was ready already."""
        found, model = self.gang(gang), model or self.lab.name_of_model
        if found["state"] == "ready" and not flags and Path(str(found["model"])).stem == model:
            return 0.0
        return self.up("--gang", gang, "--replace", *flags, model=model)

    def up(self, *words: str, model: str = "") -> float:
        """`up`, which has to end well; returns how long it took."""
        began = time.monotonic()
        profile = self.lab.profile_of(model or self.lab.name_of_model)
        done = self.run("up", "--model", profile, *words, timeout=self.left_s - 15)
        if done.returncode:
            self.keep("up")
            raise Otherwise(f"up ended with {done.returncode}: {_last(done.stderr)}")
        return time.monotonic() - began

    def run(self, *words: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`l40s-deploy WORDS`, whatever its exit code; out of time is an end too."""
        try:
            return self.lab.deploy(*words, code=None, timeout=max(5.0, timeout))
        except subprocess.TimeoutExpired as error:
            raise Otherwise(f"{' '.join(words[:2])} did not end within {error.timeout:.0f} s") from None

    def keep(self, name: str) -> None:
        """The runs' events and the tails of their logs, of every node."""
        for node in self.lab.hosts():
            with contextlib.suppress(DeployError, OSError):
                runs = find_node_in(self.lab, node).file("/var/lib/l40s-deploy/gangs")
                for file in (*runs.glob("*/runs/*/events.jsonl"), *runs.glob("*/runs/*/engine.log")):
                    place = self.kept / f"{name}-{node}-{file.parts[-4]}-{file.parent.name}-{file.name}"
                    place.write_bytes(file.read_bytes()[-40_000:])

    # -- the onlooker

    def nodes_of(self, gang: str) -> list[str]:
        names = list(self.lab.hosts())
        each = len(names) // self.lab.gangs
        first = int(gang.removeprefix("gang")) * each
        return names[first : first + each]

    def gpus_of(self, gang: str) -> list[int]:
        """Numbers of a gang's GPUs on this machine."""
        names = list(self.lab.hosts())
        each = self.lab.gpus
        return [names.index(node) * each + own for node in self.nodes_of(gang) for own in range(each)]

    def rank(self, gang: str, tp_rank: int) -> tuple[str, Identity]:
        """(node, process) of a rank, by the process id that `status` shows, which is the node's own."""
        for node in self.gang(gang)["nodes"]:
            for rank in node["ranks"]:
                if rank["tp_rank"] == tp_rank and (found := self.process_of(node["name"], rank["pid"])) is not None:
                    return str(node["name"]), found
        raise Otherwise(f"no process of TP{tp_rank} runs in {gang}")

    def process_of(self, node: str, pid: int) -> Identity | None:
        """By the id that the node itself has for it."""
        processes: list[Identity] = find_node_in(self.lab, node).processes()
        return next((one for one in processes if _pid_inside(one.pid) == pid), None)

    def engine(self, gang: str | None = None) -> list[Identity]:
        """Every process of an engine, of one gang or of all."""
        nodes = list(self.lab.hosts()) if gang is None else self.nodes_of(gang)
        found = [process for node in nodes for process in find_node_in(self.lab, node).processes()]
        return [process for process in found if any(word in command_of(process.pid) for word in _ENGINE)]

    def failed(self, gang: str, deadline_s: float = 45.0) -> tuple[dict[str, Any], float]:
        """(`status` of the gang that failed and has a cause, seconds until it said so)."""
        return self.seen(
            gang, lambda one: one["state"] == "failed" and one["cause"], deadline_s, "failed, with a cause"
        )

    def seen(
        self, gang: str, what: Callable[[dict[str, Any]], Any], deadline_s: float, words: str
    ) -> tuple[dict[str, Any], float]:
        """(`status` of a gang once it is so, seconds until then)."""
        began, deadline_s = time.monotonic(), deadline_s * self.patience
        while True:
            found = self.gang(gang)
            if what(found):
                return found, round(time.monotonic() - began, 2)
            if time.monotonic() - began > min(deadline_s, self.left_s):
                raise Otherwise(f"status did not say within {deadline_s:.0f} s: {words}; it said {found['state']}")
            time.sleep(0.05)

    def service(self, gang: str = "gang0") -> str:
        return str(self.gang(gang)["service"]["url"])

    @contextlib.contextmanager
    def load(self, url: str, clients: int = 4) -> Iterator[Load]:
        """Clients without a retry, whose answers have to go on with the alphabet; from the first answer on."""
        kind = AlphabetLoad if self.lab.real else Load
        with kind(url, self.lab.name_of_model, clients=clients, tokens=self.tokens, pause_s=self.pause_s) as load:
            if not wait_until(lambda: load.good >= clients, deadline_s=30.0 * self.patience):
                raise Otherwise(f"no load at {url}: {load.bad[:1]}")
            yield load

    def continues(self, url: str, **figures: Any) -> None:
        """Raises Otherwise, with these figures, where a generation does not go on with the alphabet."""
        text = complete(url, self.lab.name_of_model, "abcdef", self.tokens)
        wanted = "ghijklmnopqrstuv"[: self.tokens] if self.lab.real else "stand-in"
        if wanted not in text:
            raise Otherwise(f"{url} goes on with {text!r}, not with {wanted!r}", **figures)


class Gone(threading.Thread):
    """From its start: seconds until processes are dead (a zombie is), and until GPUs are free; None within a minute."""

    def __init__(self, processes: list[Identity], gpus: Gpus, which: list[int]) -> None:
        super().__init__(daemon=True)
        self.processes_s: float | None = None
        self.memory_s: float | None = None
        self._what = (processes, gpus, which)
        self._began = time.monotonic()
        self.start()

    def run(self) -> None:
        processes, gpus, which = self._what
        while time.monotonic() - self._began < 60 and (self.processes_s is None or self.memory_s is None):
            passed = round(time.monotonic() - self._began, 2)
            if self.processes_s is None and not any(process.alive for process in processes):
                self.processes_s = passed
            if self.memory_s is None and len(gpus) and gpus.free(which):
                self.memory_s = passed
            if not len(gpus) and self.processes_s is not None:
                return
            time.sleep(0.02)

    def figures(self) -> dict[str, float | None]:
        self.join(70)
        return {"processes_dead_s": self.processes_s, "memory_free_s": self.memory_s}


class AlphabetLoad(Load):
    """Each answer is held to the alphabet."""

    def _ask(self, prompt: str, *, stream: bool) -> str:
        start = hash(prompt) % 26
        letters = checkpoint.ALPHABET * 3
        try:
            text = complete(self.url, self.model, letters[start : start + 6], self.tokens)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        wanted = letters[start + 6 : start + 6 + self.tokens]
        return "" if text == wanted else f"wrong text: {text!r}, not {wanted!r}"


def find_node_in(lab: SmallLab, node: str) -> Any:
    """A node of the lab as faults get hold of it."""
    os.environ["L40S_LAB_ROOT"] = str(lab.folder / "labs")
    return find_node(lab.name, node)


def start(lab: SmallLab, *words: str) -> subprocess.Popen[str]:
    """`l40s-deploy WORDS` beside us, its lines in a file of the lab's folder."""
    log = (lab.folder / f"{words[0]}.log").open("w")
    return subprocess.Popen([*L40S_DEPLOY, *words], env=lab.environment, stdout=log, stderr=log, text=True)


def engine_python(real: bool) -> str:
    """A Python that has torch."""
    return f"/opt/l40s/venvs/{STACK.stem}/bin/python3" if real else sys.executable


def _pid_inside(pid: int) -> int | None:
    """What the innermost PID namespace calls a process (NSpid of proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:")), None)


def command_of(pid: int) -> bytes:
    """A process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.startswith(("error", "  fix"))] or text.splitlines()[
        -3:
    ]
    return " / ".join(line.strip() for line in lines)[:500]
