"""The slice in a lab: its profiles, a start that is watched, loads and profiles of what serves."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.gpu.stage import MODELS, STACK, GpuLab, Otherwise, Stage, find_node_in, start
from tests.slice import engine_log, judging, kernels, model
from tests.slice.watching import Ballast, affinity

from l40s_lab.processes import wait_until
from orchestrator.protocol.errors import DeployError

ORIGINAL, REBLOCKED, ALONE, ALONE_INT8 = "slice-128", "slice-64", "slice-64-of-1", "slice-int8-of-1"
BLOCKS = {ORIGINAL: 128, REBLOCKED: 64, ALONE: 64, ALONE_INT8: model.INT8}
GRAPHS = (32, 128)
POSING = "/opt/posing"
"""tests/slice/posing, on a node."""
POSED = "/tmp/posed"
"""On a node, what it writes."""
POSES = {
    "as-an-l40s": {"PYTHONPATH": POSING, "POSE": POSED},
    "with-tiles-of-sm80": {"PYTHONPATH": POSING, "POSE": POSED, "POSE_PLANT": "sm80"},
}
"""Environments of an engine that takes its GPU for an L40S."""
LIMITS = ("--mem-fraction-static", "--max-total-tokens", "--context-length")
"""Of the stack, which are for a tiny model: without them the engine takes what it finds."""
COUNTS = (1, 4, 32, 128)
INPUT, OUTPUT = 200, 200
WARM = 12
"""Tokens of the requests before those that count: they compile what a batch of this size needs."""
STEPS_PROFILED = 6
_LONG_ANSWER = 600
"""Tokens: some seconds, and for 128 requests no more KV cache than a card of an L40S's size has (the engine reserves it
for all of an answer, and lets requests wait that find none)."""
_LOOK_EACH_S = 5.0
_KEPT = 150_000
"""Characters of a log's begin and of its end."""


@dataclass
class SliceLab(GpuLab):
    """A lab whose nodes serve the slice. cut: the number of ranks that share it"""

    cut: int = 4
    layers: int = model.LAYERS
    name_of_model: str = f"{REBLOCKED}-graphs-{GRAPHS[0]}"

    def up(self) -> None:
        for directory, block in BLOCKS.items():
            for graphs in GRAPHS:
                self._write_profile(directory, block, graphs)
        for pose in POSES:
            self._write_profile(ALONE, BLOCKS[ALONE], GRAPHS[-1], pose)
        document = yaml.safe_load(STACK.read_text())
        document["flags"] = {name: value for name, value in document["flags"].items() if name not in LIMITS}
        self.stack = self.folder / "stack" / STACK.name
        self.stack.parent.mkdir(exist_ok=True)
        self.stack.write_text(yaml.safe_dump(document, sort_keys=False))
        super().up()

    def router_venv(self) -> Path | None:
        """Of gangs of several GPUs; those of one are compared, and start side by side by a command of their own."""
        return super().router_venv() if self.gpus > 1 else None

    def sizes(self, directory: str) -> dict[str, int]:
        """Dimensions of a model."""
        return model.dimensions(self.cut_for(directory), self.layers)

    def cut_for(self, directory: str) -> int:
        """Ranks that share a model."""
        return 1 if directory in (ALONE, ALONE_INT8) else self.cut

    def _write_profile(self, directory: str, block: int, graphs: int, pose: str = "") -> None:
        name = profile_of(directory, graphs, pose)
        described = model.profile(name, directory, self.sizes(directory), block, graphs)
        if pose:
            described["env"] = {"all": POSES[pose]}
        if not self.real:
            described["canary"]["expect_any"] = ["stand-in"]
        (self.folder / f"{name}.yml").write_text(yaml.safe_dump(described))

    def place_model(self, node: str) -> None:
        for directory, block in BLOCKS.items():
            document = json.dumps(model.config(self.sizes(directory), block))
            place = MODELS / directory
            self.on(node, f"mkdir -p {place} && cd {place} && touch .standin && cat >config.json", document.encode())


def profile_of(directory: str, graphs: int, pose: str = "") -> str:
    """Name of a model's profile whose graphs go so far. pose: of POSES"""
    return f"{directory}-graphs-{graphs}{pose and f'-{pose}'}"


@dataclass(frozen=True)
class Wish:
    """A start. flags: of the engine, after those of stack and profile; pose: of POSES"""

    directory: str
    graphs: int
    words: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gang: str = "gang0"
    pose: str = ""

    @property
    def model(self) -> str:
        return profile_of(self.directory, self.graphs, self.pose)

    def command(self, stage: Stage, *options: str) -> list[str]:
        """Of `plan` and of `up`, after the verb, with these options."""
        words = ["--model", stage.lab.profile_of(self.model), "--gang", self.gang, *self.words, *options]
        return [*words, "--", *self.flags] if self.flags else words


def begin(stage: Stage, wish: Wish, figures: dict[str, Any], ballast: Ballast | None = None) -> Served:
    """`plan`, then `up`, which has to end well; figures get what both said, and what `status` said meanwhile."""
    stage.lab.name_of_model = wish.model
    plan, times = planned(stage, wish)
    figures |= {"command": " ".join([wish.model, *wish.words, *wish.flags]), "plan": plan and plan.figures()}
    figures["compiled_before"] = stage.compiled_before
    looks: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        code = up(stage, wish, looks, ballast)
    finally:
        figures["up_s"] = round(time.monotonic() - began, 1)
        figures["engine"] = memory = engine_log.memory(logs(stage, wish.gang).values())
        keep_logs(stage, wish.gang, f"{wish.model}-{stage.lab.nodes}x{stage.lab.gpus}")
    gang = stage.gang(wish.gang)
    figures |= {"outside": judging.outside(gang["start"], times)}
    figures |= {"start": gang["start"], "called_behind": judging.called_behind(looks)}
    if code:
        why = stage.run("why").stdout[-600:]
        raise Otherwise(f"up ended with {code}: {why}", **figures)
    if plan is not None:
        cut = plan.with_less(ballast.bytes) if ballast is not None else plan
        figures |= {"plan_for_this_card": cut.figures(), "plan_above_engine": judging.compared(cut, memory)}
    figures["affinity"] = affinity(stage, gang)
    served = Served.of(stage, wish)
    stage.continues(served.url, **figures)
    return served


def planned(stage: Stage, wish: Wish) -> tuple[judging.Planned | None, dict[str, Any] | None]:
    """The memory, None where the plan does not calculate one, as for a stand-in; and how long a start takes."""
    done = stage.run("plan", *wish.command(stage, "--json"))
    if done.returncode:
        raise Otherwise(f"plan ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    document = json.loads(done.stdout)
    memory, times = document.get("memory") or {}, document["gangs"][0].get("start")
    return (judging.Planned.of(memory) if memory.get("kv_tokens") else None), times


def up(stage: Stage, wish: Wish, looks: list[dict[str, Any]], ballast: Ballast | None) -> int:
    """Its exit code. The ballast is taken once the engine's processes are there: `up` refuses a GPU in use."""
    process = start(stage.lab, "up", *wish.command(stage, "--replace"))
    next_look = time.monotonic() + _LOOK_EACH_S
    try:
        while process.poll() is None:
            if stage.left_s < 5:
                raise Otherwise("up did not end in time")
            if ballast is not None and not ballast.taken and stage.engine(wish.gang):
                ballast.take()
                stage.gpus.idle = stage.gpus.used()
            if time.monotonic() > next_look:
                looks.append(stage.gang(wish.gang))
                next_look = time.monotonic() + _LOOK_EACH_S
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.terminate()
    return process.wait(20)


def logs(stage: Stage, gang: str = "gang0") -> dict[str, str]:
    """The newest run's log of each node."""
    found = {}
    for node in stage.nodes_of(gang):
        with contextlib.suppress(DeployError, OSError):
            runs = find_node_in(stage.lab, node).file(f"/var/lib/l40s-deploy/gangs/{gang}/runs")
            files = sorted(runs.glob("*/engine.log"), key=lambda file: file.stat().st_mtime)
            if files:
                found[node] = files[-1].read_text("utf-8", "replace")
    return found


def keep_logs(stage: Stage, gang: str, name: str) -> None:
    """Begin and end of each node's log, and what `up` printed."""
    stage.kept.mkdir(parents=True, exist_ok=True)
    for node, text in logs(stage, gang).items():
        part = text if len(text) < 2 * _KEPT else f"{text[:_KEPT]}\n[...]\n{text[-_KEPT:]}"
        (stage.kept / f"{name}-{node}.log").write_text(part)
    with contextlib.suppress(OSError):
        (stage.kept / f"{name}-up.txt").write_text((stage.lab.folder / "up.log").read_text())


@dataclass(frozen=True)
class Served:
    """What a gang serves. url: where, asked once"""

    stage: Stage
    gang: str
    directory: str
    url: str

    @classmethod
    def of(cls, stage: Stage, wish: Wish) -> Served:
        """Once it is ready."""
        return cls(stage, wish.gang, wish.directory, stage.service(wish.gang))

    def log(self) -> str:
        """Of the first node, where the engine writes its steps."""
        return logs(self.stage, self.gang).get(self.stage.nodes_of(self.gang)[0], "")

    def client(self, requests: int, size: int, output: int) -> list[str]:
        """So many requests of this size at once, as a command."""
        assert isinstance(self.stage.lab, SliceLab)
        vocabulary = self.stage.lab.sizes(self.directory)["vocab_size"]
        numbers = (requests, size, output, vocabulary)
        return [sys.executable, "-m", "tests.slice.asking", self.url, *map(str, numbers)]

    def asked(self, requests: int, size: int, output: int) -> dict[str, Any]:
        """What a client saw. Raises Otherwise where a request failed."""
        words, left_s = self.client(requests, size, output), max(10.0, self.stage.left_s - 5)
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=left_s, check=False)
            seen: dict[str, Any] = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise Otherwise(f"{requests} requests of {size} tokens did not end in time") from None
        except ValueError:
            raise Otherwise(f"the client ended with {done.returncode}: {done.stderr.strip()[-300:]}") from None
        if seen["failed"]:
            raise Otherwise(f"{seen['failed']} of {requests} requests failed: {seen.get('why')}", load=seen)
        return seen

    def loads(self, mark: Callable[[str], None], counts: Sequence[int] = COUNTS) -> dict[str, Any]:
        """By number of requests: what a client saw, and the engine's own steps meanwhile. mark: hears what comes now"""
        found = {}
        for requests in counts:
            mark(f"{requests} requests")
            self.asked(requests, INPUT, WARM)
            before = len(self.log())
            seen = self.asked(requests, INPUT, OUTPUT)
            steps = engine_log.steps(self.log()[before:])
            found[str(requests)] = {**seen, "steps": [run.figures() for run in steps if run.requests == requests]}
            self.stage.say(f"  {requests} requests: {json.dumps(found[str(requests)])}")
        return found

    def profiled(self, requests: int) -> dict[str, Any]:
        """Kernels of some decode steps with so many requests, of every rank, by the engine's own profiler."""
        before, place = len(self.log()), f"/tmp/profile-{requests}-{int(time.time())}"
        client = subprocess.Popen(self.client(requests, INPUT, _LONG_ANSWER), stdout=subprocess.DEVNULL)
        decoding = re.compile(rf"Decode batch.*#running-req: {requests},")
        try:
            if not wait_until(lambda: bool(decoding.search(self.log()[before:])), deadline_s=60, step_s=0.3):
                raise Otherwise(f"{requests} requests were not decoded together")
            self.post("start_profile", {"output_dir": place, "num_steps": STEPS_PROFILED, "activities": ["GPU"]})
            files = self._traces(place)
        finally:
            client.kill()
            client.wait()
            wait_until(self._idle, deadline_s=20, step_s=0.5)
        ranks = kernels.read(files)
        return {"requests": requests, "steps": STEPS_PROFILED, "ranks": ranks, "waiting_ms": kernels.waiting_ms(ranks)}

    def post(self, verb: str, body: dict[str, Any]) -> None:
        """To the engine itself. Raises OSError."""
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{verb}", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def _idle(self) -> bool:
        """It refuses to flush its cache while requests run."""
        try:
            self.post("flush_cache", {})
        except OSError:
            return False
        return True

    def _traces(self, place: str) -> list[Path]:
        """One for each rank; the engine writes them one after the other, and a while."""
        wanted = len(self.stage.gpus_of(self.gang))
        folders = [find_node_in(self.stage.lab, node).file(place) for node in self.stage.nodes_of(self.gang)]

        def written() -> list[Path]:
            return [file for folder in folders if folder.exists() for file in folder.glob("*TP-*.trace.json.gz")]

        def still() -> bool:
            return all(time.time() - file.stat().st_mtime > 1.5 for file in written())

        if not wait_until(lambda: len(written()) >= wanted and still(), deadline_s=90, step_s=0.5):
            raise Otherwise(f"{len(written())} of {wanted} ranks wrote a profile")
        return written()
