"""sglang-router 0.3.2 as data: its command line, and what an agent must know to run it; `serving` has its answers.

Sources: sglang_router/router_args.py of the wheel 0.3.2 for the flags; its REST interface as it answers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from orchestrator.engines.engine import ARGUMENTS_FILE, STUB_FILE, Engine
from orchestrator.engines.serving import CERTIFICATE_FILE
from orchestrator.protocol.staging import CausePattern, StopOrder, Watch

VERSION = "0.3.2"
_HEALTH_FLAG = "--health-check-endpoint"

PYTHON_FIX = "run `l40s-deploy prepare --tags router_env`, or set l40s_router_venv to the router's virtual environment"

WATCH = Watch(
    dialect="sglang-router-0.3",
    causes=(
        CausePattern(
            id="ROUTER-MISSING",
            pattern=r"No module named '?sglang_router",
            text="sglang-router is not installed in the router's virtual environment",
            fix=f"run `l40s-deploy prepare --tags router_env`, or `pip install sglang-router=={VERSION}` in that"
            " environment",
        ),
        CausePattern(
            id="PORT-IN-USE",
            pattern=r"[Aa]ddress already in use|Failed to bind",
            text="a port that the router needs is in use",
            fix="find the listener with `ss -ltnp`, or change l40s_router_port or l40s_router_metrics_port",
        ),
    ),
    http={"alive": "/liveness"},
    stop=StopOrder(leader_signal="TERM", drain_s=60.0, shutdown_s=5.0),
)

WORKERS_HEALTH = "workers"
"""Among the paths that a router's agent is given: where the router asks its workers for their health."""


def watch(health_path: str) -> Watch:
    """What the router's agent is given, with the path at which its workers' health is asked."""
    return replace(WATCH, http={**WATCH.http, WORKERS_HEALTH: health_path})


_FLAGS: tuple[tuple[str, str], ...] = (
    ("--policy", "cache_aware"),
    # An engine of 32 ranks answers a probe that generates after up to 20 s, and its flag at once.
    ("--health-check-interval-secs", "5"),
    ("--health-check-timeout-secs", "25"),
    ("--health-failure-threshold", "2"),
    ("--health-success-threshold", "1"),
    ("--worker-startup-timeout-secs", "60"),
    ("--worker-startup-check-interval", "1"),
    # At the reference cluster's pace an answer of 4,000 tokens takes minutes, and nothing cuts it short.
    ("--request-timeout-secs", "7200"),
    ("--retry-max-retries", "5"),
    ("--retry-initial-backoff-ms", "100"),
    ("--retry-max-backoff-ms", "5000"),
    # A gang that refuses connections is left alone after three requests, not after ten, and tried again soon.
    ("--cb-failure-threshold", "3"),
    ("--cb-success-threshold", "1"),
    ("--cb-timeout-duration-secs", "15"),
    ("--shutdown-grace-period-secs", "60"),
    ("--log-level", "warn"),
)


_KEY_FILE = "router-key.pem"
_SECRETS = "$L40S_GANG_DIR/"
"""Where the agent keeps the gang's secret files: a variable of the router's environment (node/engine/guardian.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What guards the router's port. All of it is secret but the certificate.

    admin_key: what the list of workers is changed with; only the router's own node has it
    api_key: what clients must send, '' for nothing; certificate, key: PEM texts, '' for plain HTTP
    """

    admin_key: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)

    def files(self, stub: str) -> tuple[tuple[str, str], ...]:
        """(name, text) of the secret files that `command` counts on. stub: the text of launch_with_secrets.py"""
        arguments = f"--control-plane-api-keys\nl40s-deploy:l40s-deploy:admin:{self.admin_key}\n"
        if self.api_key:
            arguments += f"--api-key\n{self.api_key}\n"
        tls = ((CERTIFICATE_FILE, self.certificate), (_KEY_FILE, self.key)) if self.certificate else ()
        return ((STUB_FILE, stub), (ARGUMENTS_FILE, arguments), *tls)


def command(python: str, host: str, port: int, metrics_port: int, health_path: str, *, tls: bool = False) -> list[str]:
    """The router's command line. Gangs are added once it runs; its keys are in files that only it can read."""
    words = [python, f"{_SECRETS}{STUB_FILE}", f"{_SECRETS}{ARGUMENTS_FILE}", "sglang_router.launch_router"]
    words += ["--host", host, "--port", str(port)]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    words += [_HEALTH_FLAG, health_path]
    for flag, value in _FLAGS:
        words += [flag, value]
    if tls:
        words += ["--tls-cert-path", f"{_SECRETS}{CERTIFICATE_FILE}", "--tls-key-path", f"{_SECRETS}{_KEY_FILE}"]
    return words


def launch_script(words: list[str]) -> str:
    """What the agent starts, and what a human can run with L40S_GANG_DIR set."""
    lines = " \\\n    ".join(_quoted(word) for word in words)
    return f"#!/bin/sh\n# sglang-router {VERSION} before the gangs. Written by l40s-deploy.\nset -eu\nexec {lines}\n"


def _quoted(word: str) -> str:
    if word.startswith(_SECRETS):
        return f'"${{L40S_GANG_DIR}}"/{shlex.quote(word.removeprefix(_SECRETS))}'
    return shlex.quote(word)


ANY_HEALTH = "/health"
"""Every SGLang has it; it says that its server runs."""


def health_path(engines: Iterable[Engine], default: Engine) -> str:
    """The path that all these engines have: where they differ, the one that every version has.

    default: the engine to count on where none is known yet
    """
    paths = {engine.health_path for engine in engines} or {default.health_path}
    return paths.pop() if len(paths) == 1 else ANY_HEALTH
