"""Debian's own Slurm on loopback: a controller and one slurmd per node. `make setup` fetches the programs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.waiting import until

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "l40s-deploy" / "slurm" / "usr"
CONFIG = """
ClusterName=l40s
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
KillWait=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1
"""
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL")


@dataclass(frozen=True)
class Ended:
    """A finished job. state: Slurm's word; log: what it and its steps printed."""

    state: str
    log: str


@dataclass(frozen=True)
class Slurm:
    """A running cluster."""

    folder: Path
    environment: dict[str, str]

    def ask(self, *words: str) -> str:
        """Run one of Slurm's commands, which must succeed."""
        done = subprocess.run(
            [str(CACHE / "bin" / words[0]), *words[1:]],
            env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, job: str) -> str:
        """Run sbatch; returns the job's number."""
        file = self.folder / "job.sh"
        file.write_text(job)
        return self.ask("sbatch", "--parsable", f"--output={self.folder}/%j.log", str(file)).strip()

    def log(self, number: str) -> str:
        file = self.folder / f"{number}.log"
        return file.read_text() if file.exists() else ""

    def state(self, number: str) -> str:
        found = re.search(r"JobState=(\S+)", self.ask("scontrol", "show", "job", number))
        return found[1] if found else ""

    def ended(self, number: str, deadline_s: float = 60.0) -> Ended:
        until(lambda: self.state(number) in _OVER, deadline_s, lambda: (self.state(number), self.log(number)), 0.2)
        return Ended(self.state(number), self.log(number))


@contextmanager
def slurm(folder: Path, nodes: Sequence[str]) -> Iterator[Slurm]:
    """Skips the test without Slurm's programs, or without root, which Slurm's job steps need."""
    if os.geteuid() != 0 or not (CACHE / "sbin" / "slurmd-wlm").exists():
        pytest.skip("Slurm's programs or root are missing: `make setup` fetches the programs")
    (plugins,) = CACHE.glob("lib/*/slurm-wlm")
    host = socket.gethostname().partition(".")[0]
    lines = [CONFIG.format(host=host, port=free_port(), plugins=plugins, folder=folder)]
    lines += [f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1" for name in nodes]
    lines += ["PartitionName=all Nodes=ALL Default=YES State=UP"]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    environment = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}",
        "PATH": f"{CACHE / 'bin'}:/usr/bin:/bin",
    }
    for name in ("state", *(f"spool.{node}" for node in nodes)):
        (folder / name).mkdir()
    made = Slurm(folder, environment)
    with ExitStack() as stack:
        stack.enter_context(_running(made, "slurmctld", "-c"))
        for node in nodes:
            stack.enter_context(_running(made, "slurmd", "-N", node, "-d", str(CACHE / "sbin" / "slurmstepd-wlm")))
        until(lambda: _idle(made) == len(nodes), 60, lambda: "".join(one.read_text() for one in folder.glob("*.out")))
        yield made


@contextmanager
def _running(made: Slurm, name: str, *words: str) -> Iterator[None]:
    with (made.folder / f"{name}{''.join(words[1:2])}.out").open("wb") as log:
        process = subprocess.Popen(
            [str(CACHE / "sbin" / f"{name}-wlm"), "-D", *words], env=made.environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _idle(made: Slurm) -> int:
    done = subprocess.run(
        [str(CACHE / "bin" / "sinfo"), "-hN", "-o", "%T"],
        env=made.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.split().count("idle")
