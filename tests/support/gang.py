"""A gang of real agents as real processes on loopback addresses, each with its own state folder; and a run of two nodes
without processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.waiting import until

from orchestrator.node import dispatch, processes, supervision
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine import scratch
from orchestrator.node.verbs import orders, report, stage
from orchestrator.protocol.staging import Endpoint

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
WATCH: dict[str, Any] = {
    "dialect": "fake",
    "rank_title": r"^engine::rank(?:_TP(?P<tp>\d+))?",
    "other_titles": [r"^engine::"],
    "phases": [
        {"phase": "weights", "pattern": r"loading (?P<step>\d+)/(?P<of>\d+)"},
        {"phase": "warm-up", "pattern": r"warming up"},
    ],
    "rank_prefix": r"^\[TP(?P<tp>\d+)\]",
    "causes": [
        {"id": "oom", "pattern": "out of memory", "text": "the GPU ran out of memory", "fix": "use less of it"},
        {
            "id": "peer",
            "pattern": "closed by peer",
            "text": "a peer went away",
            "fix": "look for the first one",
            "secondary": True,
        },
    ],
    "http": {
        "alive": "/health",
        "generate": "/health_generate",
        "metrics": "/metrics",
        "models": "/v1/models",
        "completions": "/v1/completions",
    },
    "probe": {"answer_s": 0.3, "probes": 3, "every_s": 0.2, "log": "batch", "counters": "worked_total.*"},
    "stop": {"leader_signal": "TERM", "drain_s": 3, "shutdown_s": 0.3, "worker_signal": None},
}


@dataclass
class Cluster:
    """`nodes` agents. Every engine process carries MARK in its environment, so that tests find all of them."""

    folder: Path
    nodes: int = 2
    ranks_each: int = 2
    lease_s: float = 30.0
    env: dict[int, dict[str, str]] = field(default_factory=dict)
    """Extra environment of a node's engine, by node rank; -1 is every node's."""
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Keys to replace in a node's staging request, by node rank."""

    agent_port: int = 0
    """The port of the leader's agent; 0 takes a free one."""

    def __post_init__(self) -> None:
        self.run_id = secrets.token_hex(4)
        self.key = secrets.token_hex(32)
        self.mark = f"GANG_TEST_MARK={secrets.token_hex(8)}"
        self.agent_port = self.agent_port or free_port()
        self.http = f"127.0.0.1:{free_port()}"
        self.model = self.folder / "model"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}")

    def name(self, rank: int) -> str:
        return f"node{rank}"

    def state_dir(self, rank: int) -> str:
        return str(self.folder / self.name(rank))

    def base(self, rank: int) -> dict[str, Any]:
        return {"state_dir": self.state_dir(rank), "gang": "gang0"}

    def staging(self, rank: int) -> dict[str, Any]:
        """The staging request of one node."""
        first = rank * self.ranks_each
        ranks = list(range(first, first + self.ranks_each))
        name, _, value = self.mark.partition("=")
        env = {
            name: value,
            "FAKE_RANKS": ",".join(map(str, ranks)),
            "FAKE_NODE_RANK": str(rank),
            "FAKE_HTTP": self.http,
            **self.env.get(-1, {}),
            **self.env.get(rank, {}),
        }
        argv = [sys.executable, str(FAKE_ENGINE)]
        return {
            **self.base(rank),
            "run_id": self.run_id,
            "node": self.name(rank),
            "node_rank": rank,
            "nnodes": self.nodes,
            "members": [self.name(other) for other in range(self.nodes)],
            "plan_id": "plan1",
            "model": "Fake",
            "stack": "fake",
            "device": "cpu",
            "argv": argv,
            "env": env,
            "gpus": list(range(self.ranks_each)),
            "tp_ranks": ranks,
            "working_dir": "/",
            "model_path": str(self.model),
            "venv_python": sys.executable,
            "leader": {"address": "127.0.0.1", "port": self.agent_port},
            "key": self.key,
            "lease_s": self.lease_s,
            "service": {"url": f"http://{self.http}"} if rank == 0 else None,
            "canary": {"prompt": "Capital of France?", "max_tokens": 4, "expect_any": ["Paris"]} if rank == 0 else None,
            "watch": WATCH,
            "launch_script": "#!/bin/sh\n"
            + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
            + f"exec {shlex.join(argv)}\n",
            **self.changes.get(-1, {}),
            **self.changes.get(rank, {}),
        }

    def stage(self) -> None:
        for rank in range(self.nodes):
            stage.stage(self.staging(rank))

    def arm(self, rank: int, deadline_s: float = 15.0) -> dict[str, Any]:
        """Through the application's entry point, as over SSH: the daemon must not be our child."""
        done = subprocess.run(
            dispatch.command("arm"),
            input=json.dumps({**self.base(rank), "deadline_s": deadline_s}).encode(),
            capture_output=True,
            timeout=60,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def arm_all(self) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(self.nodes) as pool:
            return list(pool.map(self.arm, range(self.nodes)))

    def go(self) -> None:
        for rank in range(self.nodes):
            orders.go(self.base(rank))

    def start(self) -> None:
        """Stage, arm, go."""
        self.armed()
        self.go()

    def armed(self) -> None:
        """Stage and arm."""
        self.stage()
        answers = self.arm_all()
        assert all(answer["ok"] for answer in answers), answers
        until(lambda: self.states() == ["armed"] * self.nodes, 10.0, lambda: f"armed: {self.states()}")

    def ready(self, deadline_s: float = 15.0) -> Cluster:
        """Start and wait until every node is ready; returns itself."""
        self.start()
        until(lambda: self.states() == ["ready"] * self.nodes, deadline_s, lambda: f"ready: {self.states()}")
        return self

    def report(self, rank: int) -> dict[str, Any]:
        return report.of_gang(self.state_dir(rank), "gang0")

    def states(self) -> list[str]:
        return [str(self.report(rank).get("state")) for rank in range(self.nodes)]

    def stop(self, rank: int, **more: Any) -> dict[str, Any]:
        return orders.stop({**self.base(rank), "deadline_s": 20, **more})

    def stop_all(self, **more: Any) -> list[dict[str, Any]]:
        """Order every node to stop; nothing is left then."""
        with ThreadPoolExecutor(self.nodes) as pool:
            answers = list(pool.map(lambda rank: self.stop(rank, **more), range(self.nodes)))
        self.nothing_left()
        return answers

    def failed(self, deadline_s: float = 10.0) -> None:
        """Every node has failed, and nothing is left."""
        until(lambda: self.states() == ["failed"] * self.nodes, deadline_s, lambda: f"failed: {self.states()}")
        self.nothing_left()

    def agent(self, rank: int) -> tuple[int, int]:
        path = Path(self.state_dir(rank), "gangs/gang0/runs", self.run_id, "agent.json")
        raw = json.loads(path.read_text()) if path.exists() else {}
        return int(raw.get("pid", 0)), int(raw.get("start", 0))

    def signal_agent(self, rank: int, number: int) -> None:
        assert supervision.send(*self.agent(rank), number)

    def log(self, rank: int) -> Path:
        """The engine's log of one node."""
        return Path(self.state_dir(rank), "gangs/gang0/runs", self.run_id, "engine.log")

    def agents_alive(self) -> list[int]:
        return [rank for rank in range(self.nodes) if processes.alive(*self.agent(rank))]

    def rank_pid(self, tp_rank: int) -> int:
        node, place = divmod(tp_rank, self.ranks_each)
        return int(self.report(node)["ranks"][place]["pid"])

    def kill_rank(self, tp_rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.rank_pid(tp_rank), number)

    def process(self, rank: int, which: str) -> int:
        """Id of the engine's parent (`launcher`), its guardian, the agent, a TP rank by number, or another by title."""
        engine = int(self.report(rank)["engine_pid"])
        if which.isdigit():
            return self.rank_pid(int(which))
        if which == "guardian":
            found = processes.read(engine)
            return found.parent if found else 0
        below = supervision.descendants([engine], supervision.everything())
        named = {supervision.title(one.pid).split(" ")[0]: one.pid for one in below}
        return {"launcher": engine, "agent": self.agent(rank)[0], **named}[which]

    def watches(self, rank: int, pid: int) -> bool:
        """Whether the agent will see that process's end."""
        for info in Path(f"/proc/{self.agent(rank)[0]}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the agent has closed it since
                if f"Pid:\t{pid}\n" in info.read_text():
                    return True
        return False

    def engine_processes(self) -> list[int]:
        """Every living process that carries the mark."""
        return list(self._marked())

    def _marked(self) -> Iterator[int]:
        mark = self.mark.encode()
        for process in supervision.everything():
            if process.gone:
                continue
            try:
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    yield process.pid
            except OSError:
                continue

    def nothing_left(self, deadline_s: float = 10.0) -> None:
        """No agent and no engine process runs."""
        until(lambda: not self.agents_alive(), deadline_s, "agents gone")
        until(lambda: not self.engine_processes(), deadline_s, "engines gone")

    def close(self) -> None:
        """End what a failed test left behind: our processes by id and start time, the rest by the mark."""
        for rank in range(self.nodes):
            pid, start = self.agent(rank)
            if pid:
                supervision.send(pid, start, signal.SIGCONT)
                supervision.send(pid, start, signal.SIGKILL)
        for pid in self.engine_processes():
            supervision.send(pid, processes.start_of(pid), signal.SIGKILL)
        for rank in range(self.nodes):
            scratch.remove(str(Path(self.state_dir(rank), "gangs/gang0/runs", self.run_id)))


Gang = Callable[..., Cluster]
"""Makes one, in the words of `Cluster`."""


def linked_run(node: str, folder: str = "/nowhere", **more: Any) -> Run:
    """One node's part; a leads."""
    members = ("a", "b")
    return Run(
        folder=folder,
        run_id="r1",
        gang="g",
        node=node,
        node_rank=members.index(node),
        nnodes=len(members),
        members=members,
        leader=Endpoint(address="127.0.0.1", port=free_port()),
        **more,
    )
