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
    rows = _of_driver(stack, driver)
    if stack.install == "venv":
        rows += _of_environment(node, stack, host)
    for holds, name, severity, title, effect, fix in (*rows, *_of_checkpoint(node, profile, host)):
        if holds:
            yield Finding(id=name, severity=severity, node=node.name, title=title, effect=effect, fix=fix)


Row = tuple[bool, str, Severity, str, str, str]
"""Whether it holds; id, severity, title, effect and fix of the finding."""


def _of_driver(stack: Stack, driver: str) -> list[Row]:
    return [
        (
            older(driver, stack.driver_min) and stack.device == "cuda",
            "DRIVER-OLD",
            Severity.STOP,
            f"the NVIDIA driver is {driver}, but the stack {stack.name} needs {stack.driver_min} or newer",
            "CUDA refuses to start",
            "install a newer driver on this node and reboot it, or use another stack",
        )
    ]


def _of_environment(node: NodeSpec, stack: Stack, host: HostFacts) -> list[Row]:
    venv, wanted, python = places.venv(node, stack.name), _numbers(stack.python), _numbers(host.engine_python or "")
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
            f"the stack {stack.name} is not installed: {venv}/bin/python3 does not exist",
            "`up` refuses",
            "run `l40s-deploy prepare`, or set l40s_venv if it is in another directory",
        ),
        (
            bool(python) and python[: len(wanted)] != wanted,
            "STACK-PYTHON",
            Severity.NOTE if python > wanted else Severity.STOP,
            f"{venv} has Python {host.engine_python}, but the stack {stack.name} needs {stack.python}",
            "packages that were built for another Python version differ or don't load",
            f"recreate the environment with Python {stack.python}: `l40s-deploy prepare`",
        ),
    ]


def _of_checkpoint(node: NodeSpec, profile: ModelProfile, host: HostFacts) -> list[Row]:
    path, missing = places.model_path(node, profile), host.config_error in ("ENOENT", "ENOTDIR")
    return [
        (
            missing,
            "MODEL-MISSING",
            Severity.NOTE,
            f"there is no {path}/config.json",
            "`up` refuses",
            "copy the checkpoint there with `l40s-deploy checkpoint push`, or correct l40s_model_root",
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
    return bool(found and least) and _numbers(found) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
