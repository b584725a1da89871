"""A stack's requirements on a node, checked against the node's facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import places
from orchestrator.planning.options import HostFacts


def contradictions(
    node: NodeSpec, stack: Stack, profile: ModelProfile, host: HostFacts, driver: str
) -> Iterator[Finding]:
    """Facts of this node that the stack or the model can't live with; what was not read contradicts nothing."""
    if older(driver, stack.driver_min) and stack.device == "cuda":
        yield _finding(
            node,
            "DRIVER-OLD",
            Severity.STOP,
            f"the NVIDIA driver is {driver}, but the stack {stack.name} needs {stack.driver_min} or newer",
            "CUDA refuses to start",
            "install a newer driver on this node and reboot it, or use another stack",
        )
    contained = stack.install != "venv"
    if older(host.glibc or "", stack.glibc_min) and not contained:
        yield _finding(
            node,
            "GLIBC-OLD",
            Severity.STOP,
            f"the C library is glibc {host.glibc}, but the stack {stack.name} needs {stack.glibc_min} or newer",
            "its libraries don't load",
            "install a newer distribution, or run the stack in a container",
        )
    if not contained:
        yield from _environment(node, stack, host)
    yield from _checkpoint(node, profile, host)


def _environment(node: NodeSpec, stack: Stack, host: HostFacts) -> Iterator[Finding]:
    venv = places.venv(node, stack.name)
    if host.engine is False:
        yield _finding(
            node,
            "STACK-MISSING",
            Severity.NOTE,
            f"the stack {stack.name} is not installed: {venv}/bin/python3 does not exist",
            "`up` refuses",
            "run `l40s-deploy prepare`, or set l40s_venv if it is in another directory",
        )
    wanted = _numbers(stack.python)
    if host.engine_python and _numbers(host.engine_python)[: len(wanted)] != wanted:
        yield _finding(
            node,
            "STACK-PYTHON",
            Severity.NOTE if _numbers(host.engine_python) > wanted else Severity.STOP,
            f"{venv} has Python {host.engine_python}, but the stack {stack.name} needs {stack.python}",
            "packages that were built for another Python version differ or don't load",
            f"recreate the environment with Python {stack.python}: `l40s-deploy prepare`",
        )


def _checkpoint(node: NodeSpec, profile: ModelProfile, host: HostFacts) -> Iterator[Finding]:
    path = places.model_path(node, profile)
    if host.config_error in ("ENOENT", "ENOTDIR"):
        yield _finding(
            node,
            "MODEL-MISSING",
            Severity.NOTE,
            f"there is no {path}/config.json",
            "`up` refuses",
            "copy the checkpoint there with `l40s-deploy checkpoint push`, or correct l40s_model_root",
        )
    elif host.config_error:
        yield _finding(
            node,
            "MODEL-UNREAD",
            Severity.UNKNOWN,
            f"{path}/config.json could not be read: {host.config_error}",
            "it is not known whether it matches the profile",
            "make it readable for the SSH user",
        )


def older(found: str, least: str) -> bool:
    """Whether a version is older than another; False where either is not known."""
    return bool(found and least) and _numbers(found) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _finding(node: NodeSpec, name: str, severity: Severity, title: str, effect: str, fix: str) -> Finding:
    return Finding(id=name, severity=severity, node=node.name, title=title, effect=effect, fix=fix)
