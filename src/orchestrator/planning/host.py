"""A node without its hardware: what was read of its system, where things are on it, and what a stack needs of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.finding import Finding
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.versions import is_newer, release


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of one node that are no hardware; each is None where it was not read.

    user:      who the SSH session runs as (after become)
    home:      that user's home directory
    cpu_count: CPUs that a process there may use
    glibc:     version of the C library, as 2.36
    engine:    whether the stack's virtual environment is there
    engine_python: version of its interpreter, as 3.11.2
    vocabularies: whether `prepare` has put tokenizers' vocabularies beside it
    config:    the checkpoint's config.json
    config_error: why config.json could not be read, an errno's name; '' where nobody asked
    """

    user: str | None = None
    home: str | None = None
    cpu_count: int | None = None
    glibc: str | None = None
    engine: bool | None = None
    engine_python: str | None = None
    vocabularies: bool | None = None
    config: Mapping[str, Any] | None = None
    config_error: str = ""


_ROOT_STATE = "/var/lib/l40s-deploy"


def venv(node: NodeSpec, stack: str) -> str:
    """The virtual environment that holds the engine."""
    return node.venv or f"/opt/l40s/venvs/{stack}"


def vocabularies(venv: str) -> str:
    """What tokenizers would download, where a bundle brought it."""
    return f"{venv}/vocabularies"


def state_dir(node: NodeSpec, host: HostFacts) -> str:
    """Where runs and caches are: l40s_state_dir, else root's or the user's place for state."""
    if node.state_dir:
        return node.state_dir.rstrip("/") or "/"
    root = host.user == "root" if host.user else (node.reach.become and node.reach.become_user == "root")
    if root or not host.home:
        return _ROOT_STATE
    return f"{host.home}/.local/state/l40s-deploy"


def gang_dir(state: str, gang: str) -> str:
    """Where a node keeps one gang's runs and secrets (node/files.py)."""
    return f"{state}/gangs/{gang}"


def model_path(node: NodeSpec, profile: ModelProfile) -> str:
    """The checkpoint's directory on this node."""
    return f"{node.model_root.rstrip('/')}/{profile.directory}"


def contradictions(
    node: NodeSpec, stack: Stack, profile: ModelProfile, host: HostFacts, driver: str
) -> Iterator[Finding]:
    """Facts of this node that the stack or the model can't live with; what was not read contradicts nothing."""
    rows = _of_environment(node, stack, host) if stack.install == "venv" else []
    old = older(driver, stack.driver_min) and stack.device == "cuda"
    title = f"the NVIDIA driver is {driver}, but the stack {stack.name} needs {stack.driver_min} or newer"
    fix = "install a newer driver on this node and reboot it, or use another stack"
    rows = [(old, "DRIVER-OLD", Severity.STOP, title, "CUDA refuses to start", fix), *rows]
    for holds, name, severity, title, effect, fix in (*rows, *_of_checkpoint(node, profile, host)):
        if holds:
            yield Finding(id=name, severity=severity, node=node.name, title=title, effect=effect, fix=fix)


Row = tuple[bool, str, Severity, str, str, str]
"""Whether it holds; id, severity, title, effect and fix of the finding."""


def _of_environment(node: NodeSpec, stack: Stack, host: HostFacts) -> list[Row]:
    its_venv, wanted, python = venv(node, stack.name), release(stack.python), release(host.engine_python or "")
    return [
        (
            older(host.glibc or "", stack.glibc_min),
            "GLIBC-OLD",
            Severity.STOP,
            f"the C library is glibc {host.glibc}, but the stack {stack.name} needs {stack.glibc_min} or newer",
            "its libraries don't load",
            "install a newer distribution, or run the stack in a container",
        ),
        (
            host.engine is False,
            "STACK-MISSING",
            Severity.NOTE,
            f"the stack {stack.name} is not installed: {its_venv}/bin/python3 does not exist",
            "`up` refuses",
            "run `l40s-deploy prepare`, or set l40s_venv if it is in another directory",
        ),
        (
            bool(python) and python[: len(wanted)] != wanted,
            "STACK-PYTHON",
            Severity.NOTE if python > wanted else Severity.STOP,
            f"{its_venv} has Python {host.engine_python}, but the stack {stack.name} needs {stack.python}",
            "packages that were built for another Python version differ or don't load",
            f"recreate the environment with Python {stack.python}: `l40s-deploy prepare`",
        ),
    ]


def _of_checkpoint(node: NodeSpec, profile: ModelProfile, host: HostFacts) -> list[Row]:
    path, missing = model_path(node, profile), host.config_error in ("ENOENT", "ENOTDIR")
    return [
        (
            missing,
            "MODEL-MISSING",
            Severity.NOTE,
            f"there is no {path}/config.json",
            "`up` refuses",
            "copy the checkpoint there from a node that has it, with `checkpoint push`, or correct l40s_model_root",
        ),
        (
            bool(host.config_error) and not missing,
            "MODEL-UNREAD",
            Severity.UNKNOWN,
            f"{path}/config.json could not be read: {host.config_error}",
            "it is not known whether it matches the profile",
            "make it readable for the SSH user"
            if host.config_error in ("EACCES", "EPERM")
            else f"ls -l {path}/config.json",
        ),
    ]


def older(found: str, least: str) -> bool:
    """Whether a version is older than another; False where either is not known."""
    return is_newer(least, found)
