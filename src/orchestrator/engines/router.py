"""The router's releases as data: command lines, and what an agent must know to run one; `serving` has its answers.

smg 1.13.0 is the one that is installed. It sends a request to the gangs whose model it names, and answers 404 where no
gang has that model. sglang-router 0.3.2, its predecessor, does not look at the name: it goes on where it is all that a
host has, before gangs of one model.

Sources: smg/router_args.py and sglang_router/router_args.py of the wheels; their REST interfaces as they answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.engines.engine import ARGUMENTS_FILE, STUB_FILE, Engine
from orchestrator.engines.serving import CERTIFICATE_FILE
from orchestrator.model.inventory import ROUTER_POLICIES
from orchestrator.protocol.staging import CausePattern, StopOrder, Watch

VERSION = "1.13.0"
"""Of the release that `prepare` installs."""
_HEALTH_FLAG = "--health-check-endpoint"

PYTHON_FIX = "run `l40s-deploy prepare --tags router_env`, or set l40s_router_venv to the router's virtual environment"

NO_HUB = "http://127.0.0.1:9"
"""HF_ENDPOINT: sglang-router looks a model's tokenizer up on a hub by the path that its gang gives, and needs none; smg
has a flag against that. Nothing listens there (port 9, discard)."""

_FLAGS: tuple[tuple[str, str], ...] = (
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
_BODY_S = 60
"""A client that sends the head of a request and no more holds one of the admitted requests for so long; by default for
300 s."""
_BY_MODEL: tuple[str, ...] = (
    "--enable-igw",
    # It would look for each model's tokenizer on a hub, and gangs have their own.
    "--disable-tokenizer-autoload",
    # By default a gang that makes no token for 3 s while requests queue gets no more of them: on these machines a long
    # prompt alone takes longer, and the gang may be the only one.
    *("--worker-wedge-secs", "120"),
    # Without colours, which it prints into files as well.
    "--log-json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRelease:
    """One release of the router.

    package, version: as a package index has it; module: what its Python starts
    by_model: a request goes only to gangs whose model it names
    options:  beside those that both releases take
    """

    package: str
    version: str
    module: str
    by_model: bool
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As its lock, its bundle and its environment are called, and what its agent reports as its stack."""
        return f"{self.package}-{self.version}"

    @property
    def venv(self) -> str:
        """Its environment where the inventory names none."""
        return f"/opt/l40s/venvs/{self.name}"


SMG = RouterRelease(package="smg", version=VERSION, module="smg.launch_router", by_model=True, options=_BY_MODEL)
SGLANG_ROUTER = RouterRelease(
    package="sglang-router", version="0.3.2", module="sglang_router.launch_router", by_model=False
)
RELEASES = (SMG, SGLANG_ROUTER)
"""The preferred one first."""


def looks_at_models(stack: str) -> bool:
    """Whether a router that was started as this stack sends a request only to gangs whose model it names."""
    return stack.startswith(f"{SMG.package}-")


@dataclass(frozen=True, slots=True)
class InstalledRouter:
    """The router's release that a host has, and where."""

    release: RouterRelease
    venv: str


def places(venv: str) -> tuple[str, ...]:
    """Environments that may hold a router: the inventory's; where that is the usual one, its predecessor's as well."""
    return (venv, SGLANG_ROUTER.venv) if venv == SMG.venv else (venv,)


def installed(packages: Mapping[str, Mapping[str, str]], venv: str, *, two_keys: bool = False) -> InstalledRouter:
    """The best of what was found; where nothing was, what `prepare` would put into `venv`.

    packages: {environment: {package: version}}
    two_keys: clients have another key than the gangs; only sglang-router puts the gangs' own in its place
    """
    for release in reversed(RELEASES) if two_keys else RELEASES:
        for place in places(venv):
            if release.package in packages.get(place, {}):
                return InstalledRouter(release, place)
    return InstalledRouter(SMG, venv)


WATCH = Watch(
    dialect="smg-1",
    causes=(
        CausePattern(
            id="ROUTER-MISSING",
            pattern=r"No module named '?(?:smg|sglang_router)",
            text="the router is not installed in its virtual environment",
            fix=f"run `l40s-deploy prepare --tags router_env`, or `pip install smg=={VERSION}` in that environment",
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


def command(
    at: InstalledRouter,
    host: str,
    port: int,
    metrics_port: int,
    health_path: str,
    *,
    policy: str = ROUTER_POLICIES[0],
    tls: bool = False,
    max_requests: str = "",
) -> list[str]:
    """The router's command line. Gangs are added once it runs; its keys are in files that only it can read.

    max_requests: that it lets in at once; it answers 429 to further ones. '': its own limit, thousands
    """
    words = [f"{at.venv}/bin/python3", f"{_SECRETS}{STUB_FILE}", f"{_SECRETS}{ARGUMENTS_FILE}", at.release.module]
    words += ["--host", host, "--port", str(port)]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    words += [_HEALTH_FLAG, health_path, "--policy", policy]
    for flag, value in _FLAGS:
        words += [flag, value]
    words += at.release.options
    if max_requests:  # they wait in the engines' queues, where they are seen, and not in the router's
        words += ["--max-concurrent-requests", max_requests, "--queue-size", "0"]
        words += ["--stream-body-stall-timeout-secs", str(_BODY_S)] if at.release.by_model else []
    if tls:
        words += ["--tls-cert-path", f"{_SECRETS}{CERTIFICATE_FILE}", "--tls-key-path", f"{_SECRETS}{_KEY_FILE}"]
    return words


def launch_script(release: RouterRelease, words: list[str]) -> str:
    """What the agent starts, and what a human can run with L40S_GANG_DIR set."""
    lines = " \\\n    ".join(_quoted(word) for word in words)
    head = f"#!/bin/sh\n# {release.package} {release.version} before the gangs. Written by l40s-deploy.\n"
    return f"{head}set -eu\nexport HF_ENDPOINT={NO_HUB}\nexec {lines}\n"


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
