"""The same gang without us: every node's launch script started in an SSH session of its own."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import command


@dataclass
class ByHand:
    """What an operator has without an orchestrator: the plan's scripts, OpenSSH, and the leader's address."""

    inventory: Path
    model: str
    nodes: list[dict[str, Any]] = field(default_factory=list)
    _scripts: dict[str, str] = field(default_factory=dict)
    _sessions: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the scripts ready, and the folder that they want: what `up` finds made, or makes before it starts."""
        asked = ("-i", str(self.inventory), "--model", self.model)
        plan = json.loads(_output(command("plan", *asked, "--json")))
        self.nodes = plan["nodes"]
        for node in self.nodes:
            show = command("plan", *asked, "--show", "script", "--node", node["name"])
            self._scripts[node["name"]] = _output(show)
            self._on(node, f"mkdir -p {node['working_dir']}")

    @property
    def url(self) -> str:
        return str(self.nodes[0]["http_url"])

    def start(self) -> None:
        """A script execs the engine, so its shell's process id, its first line, is the engine's."""
        for node in self.nodes:
            session = subprocess.Popen(
                [*self._ssh(), f"root@{node['address']}", "echo $$; exec sh -s 2>/dev/null"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert session.stdin is not None
            session.stdin.write(self._scripts[node["name"]])
            session.stdin.close()
            session.stdin = None
            self._sessions[node["name"]] = session

    def wait_healthy(self, deadline_s: float) -> None:
        """Until the leader's /health answers 200."""
        end = time.monotonic() + deadline_s
        while not healthy(self.url):
            if time.monotonic() > end:
                raise SystemExit(f"{self.url}/health did not answer 200 in time")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the leader's engine in order, and so the rest."""
        self._signal(self.nodes[0], "-TERM {pid}")
        self._forget(60)

    def kill(self) -> None:
        """End every node's process group (sshd makes one of each session)."""
        for node in self.nodes:
            self._signal(node, "-KILL -- -{pid}")
        self._forget(30)

    def _forget(self, deadline_s: float) -> None:
        for session in self._sessions.values():
            session.communicate(timeout=deadline_s)
        self._sessions.clear()
        self._pids.clear()

    def _signal(self, node: Mapping[str, Any], words: str) -> None:
        name = node["name"]
        out = self._sessions[name].stdout
        if name not in self._pids and out is not None:
            self._pids[name] = int(out.readline())
        self._on(node, "kill " + words.format(pid=self._pids[name]), check=False)

    def _on(self, node: Mapping[str, Any], words: str, *, check: bool = True) -> None:
        subprocess.run([*self._ssh(), f"root@{node['address']}", words], check=check, timeout=30, capture_output=True)

    def _ssh(self) -> list[str]:
        key, known = self.inventory.with_name("client"), self.inventory.with_name("known_hosts")
        return ["ssh", "-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]


def healthy(url: str, timeout_s: float = 2.0) -> bool:
    """The leader's own word."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _output(argv: list[str]) -> str:
    return subprocess.check_output(argv, timeout=60, text=True, stderr=subprocess.DEVNULL)
