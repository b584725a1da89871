"""An engine of one or two "nodes" on 127.0.0.x, launched as the plan renders it, and observations of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.contract.contract import REAL, VLLM
from tests.support.load import Stream
from tests.support.ports import free_port
from tests.support.sources import LAB
from tests.support.waiting import until

from l40s_lab.engine.environment import ENGINE_STACK
from orchestrator.engines.registry import dialect
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec, Overrides, Reach
from orchestrator.node.engine.watch import LogWatch
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.host import HostFacts
from orchestrator.protocol.staging import Asked, NodePlan, Watch

PROFILE = "tiny-deepseek-v3"
READY = "The server is fired up and ready to roll!"


@dataclass(frozen=True, kw_only=True)
class Maker:
    """How one kind of engine is launched.

    name:     real or stand-in
    command:  the words before SGLang's own flags, for a version
    venv:     passed to the plan
    settings: environment in addition to the plan's
    patience: time limit in seconds of any single step
    """

    name: str
    command: Callable[[str], Sequence[str]]
    venv: str
    settings: dict[str, str] = field(default_factory=dict)
    patience: float


@dataclass
class Node:
    """One launcher, its children, and its output."""

    process: subprocess.Popen[bytes]
    address: str
    port: int
    log: Path
    patience: float
    dialect: str
    family: dict[int, int] = field(default_factory=dict)
    """Children that were seen: pid -> start time."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """Its complete output, with carriage returns as line ends."""
        return self.log.read_text("utf-8", "replace").replace("\r", "\n")

    def says(self, words: str) -> bool:
        return re.search(words, self.text()) is not None

    def until_says(self, words: str) -> None:
        self.until(lambda: self.says(words), f"says {words!r}")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The condition's first true value. Fails with the log's end if there is none in time."""

        def met() -> Any:
            if value := condition():
                return value
            ended = self.process.poll()
            if ended is not None and not condition():
                raise AssertionError(f"{what}: the node ended with {ended}\n{self.text()[-4000:]}")
            return None

        return until(met, self.patience, lambda: f"{what}\n{self.text()[-4000:]}")

    def exit_code(self) -> int:
        """Wait for the launcher's exit code."""
        try:
            return self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {self.patience:g} s\n{self.text()[-4000:]}") from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self, pid: int) -> None:
        """Stop a process of the node, every thread: a running thread takes the signal when the kernel next looks."""
        os.kill(pid, signal.SIGSTOP)
        self.until(lambda: set(_states(pid)) == {"T"}, f"{pid} stops")

    # -- processes ------------------------------------------------------------------------------------------------

    def children(self) -> dict[int, str]:
        """pid -> title of this launcher's children that have SGLang's titles."""
        found = {pid: title(pid) for pid in _children(self.pid)}
        self.family |= {pid: started for pid in found if (started := start_time(pid)) is not None}
        return {pid: words for pid, words in found.items() if words.startswith("sglang::")}

    def titles(self) -> str:
        return ", ".join(sorted(self.children().values()))

    def child(self, words: str) -> int:
        """The pid of the child with this title, waited for."""
        return int(self.until(lambda: next((p for p, t in self.children().items() if t == words), 0), words))

    def orphans(self) -> list[str]:
        """Titles of children that were seen and still live."""
        return [title(pid) for pid, started in self.family.items() if start_time(pid) == started and title(pid)]

    def left_behind(self) -> str:
        """`nothing`, or the titles that outlive the launcher, after a moment for the kernel to reap them."""
        deadline = time.monotonic() + 2.0
        while self.orphans() and time.monotonic() < deadline:
            time.sleep(0.02)
        return ", ".join(sorted(self.orphans())) or "nothing"

    # -- HTTP -----------------------------------------------------------------------------------------------------

    def ask(
        self, path: str, body: Any = None, *, method: str = "", timeout: float = 0.0, key: str = ""
    ) -> tuple[str, bytes]:
        """Status and body of one request; `refused`, `cut` or `no answer` instead of a status if there is none."""
        link = http.client.HTTPConnection(self.address, self.port, timeout=timeout or self.patience)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            link.request(method or ("GET" if body is None else "POST"), path, data, headers)
            answer = link.getresponse()
            return str(answer.status), answer.read()
        except ConnectionRefusedError:
            return "refused", b""
        except TimeoutError:
            return "no answer", b""
        except (OSError, http.client.HTTPException):
            return "cut", b""
        finally:
            link.close()

    def status(self, path: str, **how: Any) -> str:
        return self.ask(path, **how)[0]

    def answers(self, path: str) -> bool:
        return self.status(path, timeout=5) == "200"

    def statuses(self, *paths: str) -> str:
        return ", ".join(self.status(path) for path in paths)

    def document(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask(path, body)
        assert status == "200", f"{path}: {status}: {answer[:400]!r}"
        return json.loads(answer)

    # -- what an agent would make of its log ------------------------------------------------------------------------

    def phases(self) -> str:
        """The phases that the engine adapter's watch data find, in the order in which they come."""
        return " > ".join(dict.fromkeys(watch.phase.name for watch in self._watched()))

    def cause(self) -> str:
        """What the catalogue of causes makes of the log: an id, marked where it is secondary; `none`."""
        *_, watch = self._watched()
        found = watch.suspect(0.0)
        return "none" if found is None else found.id + (" (secondary)" if found.secondary else "")

    def _watched(self) -> Iterator[LogWatch]:
        """What its log shows, from the beginning and after each line."""
        watch = LogWatch.of(_watch(self.dialect))
        watch.begin(0.0)
        yield watch
        for line in self.text().splitlines():
            watch.feed(line, 0.0)
            yield watch


def named(status: str, body: bytes) -> str:
    """What an answer shows of the model that it was asked for: its status, and the model that it says has answered."""
    model = json.loads(body).get("model") if status == "200" else None
    return f"{status}, {model or 'none'}"


class Request(Stream):
    """A generation in the background, by SGLang's own endpoint: its result, as `Node.ask` gives it."""

    def __init__(self, node: Node, tokens: int) -> None:
        body = {"text": "abcdef", "stream": True, "sampling_params": _sampling(tokens)}
        super().__init__(f"http://{node.address}:{node.port}/generate", body, node.patience)


def generation(tokens: int) -> dict[str, Any]:
    """Body of a /generate request for so many tokens."""
    return {"text": "abcdef", "sampling_params": _sampling(tokens)}


def _sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


class EngineUnderTest:
    """The nodes of one kind of engine. Every address is loopback; every process is ended by its pid."""

    def __init__(self, maker: Maker, folder: Path, model: Path, *, plays: str = "0.5.23") -> None:
        self.maker, self.folder, self.model, self.plays = maker, folder, model, plays
        self.patience = maker.patience
        self.nodes: list[Node] = []
        self.http_port = free_port("127.0.0.1", "127.0.0.2")
        self.dist_port = free_port("127.0.0.1")

    @property
    def _old(self) -> bool:
        return self.plays.startswith("0.4")

    def start_node(
        self,
        node_rank: int,
        *,
        nnodes: int = 2,
        gpus: int = 1,
        extra: Sequence[str] = (),
        settings: dict[str, str] | None = None,
        model: Path | None = None,
    ) -> Node:
        """Launch one node; `extra` is added to the plan's flags, or replaces them where it names them again."""
        plan = self._planned(nnodes, gpus, model or self.model)[node_rank]
        argv = [*self.maker.command(self.plays), *plan.argv[3:], *extra]
        log = self.folder / f"node{node_rank}.{len(self.nodes)}.log"
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=home,
                env={**dict(plan.env), **self.maker.settings, **(settings or {})},
            )
        address = f"127.0.0.{node_rank + 1}"
        adapter = "sglang-0.4.4" if self._old else "sglang-0.5"
        node = Node(process, address, self.http_port, log, self.patience, adapter)
        self.nodes.append(node)
        return node

    def start(self, nnodes: int = 2, **how: Any) -> list[Node]:
        return [self.start_node(rank, nnodes=nnodes, **how) for rank in range(nnodes)]

    def ready(self) -> None:
        """Wait until the leader says that it is ready and the others answer."""
        leader, *others = self.nodes
        leader.until_says(READY)
        for node in others:
            node.until(partial(node.answers, "/health"), "a worker's /health")
        for node in self.nodes:
            node.children()

    def end(self) -> None:
        """Check that nothing of what was started is left."""
        for node in self.nodes:
            node.children()
        for node in self.nodes:
            _kill(node.family)
            if node.process.poll() is None:
                node.process.kill()
                node.process.wait(30)
            _kill(node.family)

    def _planned(self, nnodes: int, gpus: int, model: Path) -> tuple[NodePlan, ...]:
        nodes = tuple(self._spec(rank, gpus, model) for rank in range(nnodes))
        profile = load_profile(PROFILE)
        facts = HostFacts(user="operator", home=str(self.folder / "home"), cpu_count=os.cpu_count())
        known = PlanFacts(hosts={node.name: facts for node in nodes})
        stack = load_stack("sglang-0.4.4-l40s" if self._old else ENGINE_STACK)
        plan = build_plan([GangSpec(name="gang0", nodes=nodes)], profile, stack, Asked(model=PROFILE), known)
        return plan.gangs[0].nodes

    def _spec(self, rank: int, gpus: int, model: Path) -> NodeSpec:
        address = f"127.0.0.{rank + 1}"
        return NodeSpec(
            name=f"node{rank}",
            gang="gang0",
            node_rank=rank,
            reach=Reach(host=address),
            address=address,
            gpus=gpus,
            model_root=str(model.parent),
            venv=self.maker.venv,
            state_dir=str(self.folder),
            http_host=address,
            ports=GangPorts(dist_init=self.dist_port, http=self.http_port),
            overrides=Overrides(socket_ifname="lo"),
        )


def stand_in(folder: Path, pace: float) -> Maker:
    """The stand-in, delivered as the lab delivers it: a package of its own on PYTHONPATH."""
    package = LAB / "standin"
    (folder / "lib").mkdir()
    (folder / "lib" / "standin").symlink_to(package)
    return Maker(
        name="stand-in",
        command=lambda plays: (sys.executable, "-m", "standin", "--plays", plays, "--"),
        venv=sys.prefix,
        settings={
            "PYTHONPATH": str(folder / "lib"),
            "STANDIN_SPEED": str(pace),
            "STANDIN_ORPHAN_S": "0.5",
            "STANDIN_STEP_MS": "2",
            "STANDIN_PEER_DEATH": "follow",
            "L40S_LAB_GPU_CLAIMS": str(folder / "claims"),
        },
        patience=30.0,
    )


def real(venv: Path) -> Maker:
    """SGLang 0.5.23 on CPU, started as its stack says."""
    python = str(venv / "bin" / "python3")
    return Maker(name=REAL, command=lambda _: (python, "-m", "sglang.launch_server"), venv=str(venv), patience=300.0)


def vllm() -> Maker:
    """The real vLLM on CPU, of a lab alone: its nodes are never launched without one."""
    return Maker(name=VLLM, command=lambda _: (), venv="", patience=300.0)


def title(pid: int) -> str:
    """The title that ps shows; '' if the process is dead or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, which together with the pid identifies a process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _children(pid: int) -> Iterator[int]:
    """Children of all threads of a process: a launcher may fork from any."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, listed.read_text().split())


def _kill(family: dict[int, int]) -> None:
    """SIGKILL takes a stopped process too."""
    for pid, started in family.items():
        if start_time(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _watch(name: str) -> Watch:
    """The watch data of the version that the stand-in plays for this dialect."""
    return dialect(name).engine({"sglang-0.4.4": "0.4.4.post1", "sglang-0.5": "0.5.23"}[name]).watch()


def _states(pid: int) -> list[str]:
    """States of its threads (proc_pid_stat(5))."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.append(file.read_text().rpartition(")")[2].split()[0])
    return found
