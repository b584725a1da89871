"""A lab whose gangs start quickly: two GPUs per node unless asked otherwise, few layers, shortened phases.

Everything else is unchanged: real SSH, real agents, real processes, the correct wiring of the other cards.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.support import preloaded
from tests.support.preloaded import L40S_DEPLOY
from tests.support.waiting import slack

from l40s_lab.hardware import wiring

MODEL = "mini-v3"
DIMENSIONS = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 4096,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
ENGINE_MODEL = "tiny-deepseek-v3"
MODELS = {"sglang": ENGINE_MODEL, "vllm": "tiny-qwen3-moe"}
UP_S = {"standin": 180.0, "sglang": 1900.0, "vllm": 1900.0, "none": 900.0}
"""Time limit of `lab up` and `up`; a machine's first `lab up` with the real engine installs it, and without an engine
it fetches what the nodes install."""
ENVIRONMENT = {"STANDIN_SPEED": "0.1", "STANDIN_STEP_MS": "3", "NCCL_DEBUG": "INFO"}
"""Slowed down: at full speed a generating stand-in would use a full core."""

IN_PLACE = "' 3 order.jso[n]'"
"""Pattern of pgrep, quoted, for a program that runs in the engine's place: it is read from an open file."""


@dataclass
class RunningLab:
    """One lab as an operator has it: its name, the folder that has labs, and commands.

    inventory: of commands
    """

    name: str
    root: Path
    inventory: Path = Path()
    started: list[subprocess.Popen[str]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.inventory == Path():
            self.inventory = self.directory / "inventory.yml"

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "L40S_LAB_ROOT": str(self.root), "L40S_INVENTORY": str(self.inventory)}

    def lab_inventory(self) -> dict[str, Any]:
        document: dict[str, Any] = yaml.safe_load((self.directory / "inventory.yml").read_text())
        return document

    def host_variables(self) -> dict[str, dict[str, Any]]:
        """By node, in the inventory's order."""
        gangs = self.lab_inventory()["all"]["children"]["gangs"]["children"]
        return {name: facts for gang in gangs.values() for name, facts in gang["hosts"].items()}

    def hosts(self) -> dict[str, str]:
        """Address of every node, by name."""
        return {name: facts["ansible_host"] for name, facts in self.host_variables().items()}

    def run(self, *words: str, check: bool = True, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy lab WORDS --name NAME`, at level 1 unless WORDS say otherwise, whatever is cached here.

        timeout: on an idle machine, in seconds
        """
        if words[:1] == ("up",) and "--level" not in words:
            words = (*words, "--level", "1")
        return self.deploy("lab", *words, "--name", self.name, code=0 if check else None, timeout=timeout)

    def running_level(self) -> int:
        return int(self.json("lab", "status", "--name", self.name)["level"])

    def console(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy lab WORDS` where the lab's name must come early; with any exit code."""
        return subprocess.run(
            [*L40S_DEPLOY, "lab", words[0], "--name", self.name, *words[1:]],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60 * slack(),
            check=False,
        )

    def deploy(self, *words: str, code: int | None = 0, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy WORDS`. code: the wanted one; None: any. timeout: on an idle machine, in seconds"""
        done = preloaded.run(words, self.environment, timeout * slack())
        assert code in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `l40s-deploy WORDS` in the background; what a failed test leaves running ends with the lab. At SIGABRT
        it shows where it is."""
        environment = {**self.environment, "PYTHONFAULTHANDLER": "1"}
        process = subprocess.Popen(
            [*L40S_DEPLOY, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(process)
        return process

    def end_started(self) -> None:
        for process in self.started:
            with process:
                process.kill()

    def json(self, *words: str, code: int | None = None) -> Any:
        return json.loads(self.deploy(*words, "--json", code=code).stdout)

    def gang(self, place: int = 0, *, code: int | None = None) -> dict[str, Any]:
        """One gang of `status --json`."""
        gang: dict[str, Any] = self.json("status", code=code)["gangs"][place]
        return gang

    def rank(self, tp_rank: int, gang: int = 0) -> tuple[str, int]:
        """(node, process id) of a rank."""
        for node in self.gang(gang)["nodes"]:
            for rank in node["ranks"]:
                if rank["tp_rank"] == tp_rank:
                    return str(node["name"]), int(rank["pid"])
        raise AssertionError(f"no TP{tp_rank}")

    def ssh(
        self, node: str, command: str, stdin: bytes = b"", *, user: str = "", check: bool = True, timeout: float = 30.0
    ) -> str:
        """Run a command on a node through OpenSSH, as in the inventory, or as another user."""
        done = subprocess.run(
            [*shlex.split(self.ssh_command(node, user)), command],
            input=stdin,
            capture_output=True,
            timeout=timeout * slack(),
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr.decode("utf-8", "replace")
        return done.stdout.decode("utf-8", "replace")

    def on(self, node: str, command: str, stdin: bytes = b"", *, check: bool = True, timeout: float = 30.0) -> str:
        """The same as root."""
        if self.lab_inventory()["all"]["vars"].get("ansible_become"):
            command = f"sudo -n sh -c {shlex.quote(command)}"
        return self.ssh(node, command, stdin, check=check, timeout=timeout)

    def ssh_command(self, node: str, user: str = "") -> str:
        """OpenSSH to a node, as in its inventory, as one line for a shell."""
        variables = self.lab_inventory()["all"]["vars"]
        words = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        words += shlex.split(variables["ansible_ssh_common_args"])
        words += ["-i", variables["ansible_ssh_private_key_file"], "-p", str(variables["ansible_port"])]
        return shlex.join([*words, f"{user or variables['ansible_user']}@{self.hosts()[node]}"])

    def engine_processes(self, nodes: Sequence[str] = ()) -> dict[str, str]:
        """Engine processes that still run, by node; empty if none does."""
        return self._running(
            "pgrep -af 'sglang::|launch_server|standin|VLLM::|vllm.entrypoints' | grep -v pgrep", nodes or self.hosts()
        )

    def in_place_processes(self) -> dict[str, str]:
        """The network test's ranks and the tuners that still run, by node; empty if none runs."""
        return self._running(f"pgrep -af {IN_PLACE}", self.hosts())

    def _running(self, look: str, nodes: Iterable[str]) -> dict[str, str]:
        found = {node: self.on(node, f"{look} || true").strip() for node in nodes}
        return {node: processes for node, processes in found.items() if processes}


@dataclass(kw_only=True)
class SmallLab(RunningLab):
    """One running lab with `gangs` gangs of `nodes` nodes. Commands are an operator's own.

    engine: standin with the small model, sglang, vllm: the real one with the lab's tiny model, or none; ranks: of each
            node
    deaths: how the stand-in's ranks die, as `lab up --deaths` says
    """

    gangs: int = 1
    nodes: int = 2
    level: int = 1
    engine: str = "standin"
    ranks: int = 1
    deaths: str = "plain"
    gpus: int = 2
    env: dict[str, str] = field(default_factory=dict)
    router_port: int = 0

    def __post_init__(self) -> None:
        self.folder = self.root.parent
        self.inventory = self.folder / "hosts.yml"
        self.profile = self.folder / f"{MODEL}.yml"

    @property
    def model(self) -> str:
        """The argument of `up --model`."""
        return MODELS.get(self.engine, str(self.profile))

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "XDG_STATE_HOME": str(self.folder / "state")}

    @property
    def router_url(self) -> str:
        """Of a lab with a router, which is on this machine."""
        return f"http://127.0.0.1:{self.router_port}"

    def up(self) -> None:
        """Start the lab and put the model on its nodes (the real engine's is already on them)."""
        self.profile.write_text(yaml.safe_dump(_profile()))
        shape = self.folder / "shape.yml"
        shape.write_text(yaml.safe_dump(_shape(self.gpus)))
        self.root.mkdir(exist_ok=True)
        self.run(
            *("up", "--wiring", str(shape), "--gangs", str(self.gangs), "--nodes", str(self.gangs * self.nodes)),
            *("--level", str(self.level), "--engine", self.engine, "--ranks", str(self.ranks)),
            *("--deaths", self.deaths),
            timeout=UP_S[self.engine],
        )
        self.write_inventory()
        if self.engine == "standin":
            for node in self.hosts():
                self.place_model(node)

    def place_model(self, node: str) -> None:
        """Write the model to the node's disk."""
        config = json.dumps({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **DIMENSIONS})
        place = f"/workspace/{MODEL}"
        self.on(node, f"mkdir -p {place} && cd {place} && touch .standin && cat >config.json", config.encode())

    def put(self, folder: Path, place: str) -> None:
        """A folder's files onto every node."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(folder, arcname=".")
        for node in self.hosts():
            self.on(node, f"mkdir -p {place} && tar -x --no-same-owner -C {place}", packed.getvalue())

    def write_inventory(self, **more: Any) -> None:
        """Write the lab's inventory with our engine environment, and further variables of the gangs if given."""
        document = self.lab_inventory()
        document["all"]["vars"] |= {"l40s_env": {**ENVIRONMENT, **self.env}, **more.pop("vars", {})}
        document["all"]["children"] |= more
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def serve(self, *words: str) -> None:
        """`up` with the lab's model."""
        self.deploy("up", "--model", self.model, *words, timeout=UP_S[self.engine])


def described(name: str, **shape: Any) -> SmallLab:
    """A small lab in a folder of its own; nothing runs yet."""
    return SmallLab(name, Path(tempfile.mkdtemp(prefix="small-lab-")) / "labs", **shape)


@contextmanager
def small_lab(name: str, *, of: SmallLab | None = None, **shape: Any) -> Iterator[SmallLab]:
    """A lab that is removed afterwards. of: an already described lab, instead of its shape."""
    lab = of or described(name, **shape)
    try:
        lab.up()
        yield lab
    finally:
        lab.end_started()
        lab.run("down")
        shutil.rmtree(lab.folder, ignore_errors=True)


def _profile() -> dict[str, Any]:
    return {
        "name": MODEL,
        "source": "made by the tests",
        "directory": MODEL,
        "architecture": "DeepseekV3ForCausalLM",
        "quantisation": "none",
        "dimensions": DIMENSIONS,
        "canary": {"prompt": "The capital of France is", "max_tokens": 8, "expect_any": ["Paris"]},
    }


def _shape(gpus: int) -> dict[str, Any]:
    """The correct wiring with this many GPUs in each node, the same number below each switch if possible."""
    return {**wiring.load("right"), "nodes": [{"keep_gpus": gpus}]}


ENDS_S = 60.0
"""The longest that an interrupted guard may take to end, on a busy machine."""


@contextmanager
def guarding(command: Sequence[str], environment: dict[str, str], said: Path) -> Iterator[int]:
    """Runs a guard meanwhile, and gives its process id; `said` is the file for its output.

    It takes SIGINT even where this process was started in a shell's background, which ignores it.
    """
    with said.open("w") as file:
        guard = subprocess.Popen(["env", "--default-signal=INT", *command], env=environment, stdout=file, stderr=file)
        try:
            yield guard.pid
        finally:
            guard.send_signal(signal.SIGINT)
            try:
                guard.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
                raise


def serving(gang: dict[str, Any], nodes: Sequence[str]) -> bool:
    """Whether the gang serves on exactly these nodes, in rank order; gang: as in `status --json`."""
    members = sorted((node["node_rank"], node["name"]) for node in gang["nodes"] if node["node_rank"] is not None)
    return bool(gang["service"] and gang["service"]["healthy"]) and [name for _, name in members] == list(nodes)
