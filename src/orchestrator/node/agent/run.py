"""One node's part of a run, as the controller staged it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import secret_files
from orchestrator.node.engine import redact
from orchestrator.node.failure import Failure

RUN_FILE = "run.json"
KEY_FILE = "key"
LAUNCH_FILE = "launch.sh"
REPORT_FILE = "report.json"
AGENT_FILE = "agent.json"
PROCESSES_FILE = "processes.json"
GOAL_FILE = "goal.json"
ENGINE_LOG = "engine.log"
AGENT_LOG = "agent.log"
EVENTS_LOG = "events.jsonl"


@dataclass(frozen=True)
class StopOrder:
    """How this engine wants to be stopped: signal for the leader's parent, then patience, in seconds."""

    leader_signal: str = "TERM"
    drain_s: float = 30.0
    shutdown_s: float = 20.0


@dataclass(frozen=True)
class Run:
    """The staged request (docs/agent.md has its keys), with defaults for what an older controller leaves out."""

    folder: str
    run_id: str
    gang: str
    node: str
    node_rank: int
    nnodes: int
    leader_address: str
    leader_port: int
    members: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node names by address, of all members."""
    plan_id: str = ""
    model: str = ""
    stack: str = ""
    device: str = "cuda"
    engine_user: str | None = None
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    tp_ranks: tuple[int, ...] = ()
    working_dir: str = "/"
    model_path: str = ""
    venv_python: str = ""
    python_fix: str = ""
    """What to do where that is missing; '' for a stack's."""
    container_program: str = ""
    """docker or podman where the engine runs in a container, else ''."""
    container_image: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions that the stack names, by package."""
    limits: Mapping[str, int] = field(default_factory=dict)
    check_free: tuple[tuple[str, int], ...] = ()
    lease_s: float = 30.0
    armed_for_s: float = 120.0
    service: Mapping[str, Any] | None = None
    canary: Mapping[str, Any] | None = None
    watch: Mapping[str, Any] = field(default_factory=dict)
    stop: StopOrder = StopOrder()
    log_limit: int = 64 * 1024 * 1024
    launch_sha256: str = ""
    """Of the launch script; '' for a run that an older version staged."""

    @property
    def leads(self) -> bool:
        """This node serves HTTP and listens for the other agents."""
        return self.node_rank == 0

    def path(self, name: str) -> str:
        """A file in the run's folder."""
        return f"{self.folder}/{name}"

    def key(self) -> bytes:
        """The run's secret for the leader link."""
        text = files.read_text(self.path(KEY_FILE))
        if not text:
            raise Failure("no-key", "the run's key is missing", self.path(KEY_FILE), "run `up` again")
        return bytes.fromhex(text.strip())

    def secrets(self) -> tuple[str, ...]:
        """What the engine's log must not show."""
        return redact.secrets_of(self.env, self.argv, self._kept.redact)

    def authorization(self) -> str:
        """The header that the engine's HTTP asks for, '' for none."""
        return self._kept.authorization

    @property
    def _kept(self) -> secret_files.Secrets:
        return secret_files.kept(os.path.dirname(os.path.dirname(self.folder)))

    @classmethod
    def read(cls, folder: str) -> Run:
        """The run that was staged in a folder."""
        return cls.of(files.read_json(f"{folder}/{RUN_FILE}"), folder)

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: str) -> Run:
        """From a staging request; a missing or misshapen key is a failure that names it."""
        try:
            leader = raw["leader"]
            stop = (raw.get("watch") or {}).get("stop") or {}
            return cls(
                folder=folder,
                run_id=str(raw["run_id"]),
                gang=str(raw["gang"]),
                node=str(raw["node"]),
                node_rank=int(raw["node_rank"]),
                nnodes=int(raw["nnodes"]),
                leader_address=str(leader["address"]),
                leader_port=int(leader["port"]),
                members=tuple(str(name) for name in raw.get("members") or ()),
                addresses={str(address): str(name) for address, name in dict(raw.get("addresses") or {}).items()},
                plan_id=str(raw.get("plan_id") or ""),
                model=str(raw.get("model") or ""),
                stack=str(raw.get("stack") or ""),
                python_fix=str(raw.get("python_fix") or ""),
                device=str(raw.get("device") or "cuda"),
                engine_user=raw.get("engine_user"),
                argv=tuple(str(word) for word in raw.get("argv") or ()),
                env={str(name): str(value) for name, value in dict(raw.get("env") or {}).items()},
                gpus=tuple(int(gpu) for gpu in raw.get("gpus") or ()),
                tp_ranks=tuple(int(rank) for rank in raw.get("tp_ranks") or ()),
                working_dir=str(raw.get("working_dir") or "/"),
                model_path=str(raw.get("model_path") or ""),
                venv_python=str(raw.get("venv_python") or ""),
                container_program=str((raw.get("container") or {}).get("program") or ""),
                container_image=str((raw.get("container") or {}).get("image") or ""),
                packages={str(name): str(value) for name, value in dict(raw.get("packages") or {}).items()},
                limits={str(name): int(value) for name, value in dict(raw.get("limits") or {}).items()},
                check_free=tuple(_port(entry) for entry in (raw.get("ports") or {}).get("check_free") or ()),
                lease_s=float(raw.get("lease_s") or 30.0),
                armed_for_s=float(raw.get("armed_for_s") or 120.0),
                service=raw.get("service"),
                canary=raw.get("canary"),
                watch=raw.get("watch") or {},
                stop=StopOrder(
                    leader_signal=str(stop.get("leader_signal") or "TERM"),
                    drain_s=float(stop.get("drain_s", 30.0)),
                    shutdown_s=float(stop.get("shutdown_s", 20.0)),
                ),
                log_limit=int(raw.get("log_limit") or 64 * 1024 * 1024),
                launch_sha256=str(raw.get("launch_sha256") or ""),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise Failure(
                "bad-request", f"not a staging request: {type(wrong).__name__} {wrong}", folder, "run `up` again"
            ) from None


def _port(entry: object) -> tuple[str, int]:
    """A port to find free: a number (on every address), or {"address", "port"}."""
    if isinstance(entry, Mapping):
        return str(entry.get("address") or ""), int(entry["port"])
    return "", int(str(entry))
