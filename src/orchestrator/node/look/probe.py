"""Verb `probe`: everything that a look reads of this machine, as raw as the machine gives it.

Answer: the fields of a snapshot (files, links, errors, nvml, host; see model/snapshot.py) with "format": 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.node import files, requests
from orchestrator.node.look import environment
from orchestrator.node.look.hardware import PARTS
from orchestrator.node.look.kernel_log import driver_errors
from orchestrator.node.look.nvml import NvmlChild
from orchestrator.node.look.reading import SnapshotReader, read_hardware
from orchestrator.node.network.netlink import addresses, flow_control
from orchestrator.node.os_errors import errno_name
from orchestrator.node.requests import request_of
from orchestrator.protocol.looks import ProbeRequest, StackQuestion

FORMAT = 1
_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
    "as": resource.RLIMIT_AS,
}
STACK_PART = "installed stack"
_RAISED_FOR_AN_ENGINE = ("memlock", "nofile")
_DEVICE_FOLDERS = ("/dev/infiniband", "/dev")
_TMP = "/tmp"  # noqa: S108 - its free space is asked
_SHM = "/dev/shm"  # noqa: S108 - its size is asked, nothing is written there


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Read this machine once."""
    asked = request_of(ProbeRequest, request)
    root = asked.fs_root
    started = time.monotonic()
    question = NvmlChild()
    hardware = read_hardware(root, PARTS)
    host = host_facts(root)
    host["disks"] = free_space(_written_places(asked))
    host["nccl_conf"] = _nccl_conf(asked.engine_user)
    host["probe_seconds"] = {"files": round(time.monotonic() - started, 4)}
    nvml = question.answer(asked.nvml_deadline_s)
    if asked.stack is not None:
        host["stack"] = _stack(asked.stack, nvml, hardware)
    host["probe_seconds"]["all"] = round(requests.seconds(), 4)
    host["clock"] = time.time()
    return {
        "format": FORMAT,
        "node": asked.node,
        "taken_at": time.time(),
        **hardware,
        "nvml": nvml,
        "host": host,
    }


def _written_places(asked: ProbeRequest) -> dict[str, str]:
    """Directories by purpose. Engines and compilers write to /tmp, everything else to the state directory; models
    are read and pushed in place."""
    places = {"root": "/", "tmp": _TMP, "state": files.state_dir(asked.state_dir)}
    return places | ({"models": asked.model_root} if asked.model_root else {})


def _nccl_conf(engine_user: str) -> dict[str, str]:
    """What NCCL reads in the home directory of the engine's user: {'path', 'text' or 'error'}. An unknown user has
    none yet."""
    user = engine_user or os.environ.get("SUDO_USER", "")
    try:
        home = (pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())).pw_dir
    except KeyError:
        return {}
    path = f"{home.rstrip('/')}/.nccl.conf"
    read = read_hardware("/", {"the user's nccl.conf": lambda reader: reader.text(path)})
    error = next(iter(read["errors"].values()), "")
    return {"path": path, "error": error} if error else {"path": path, "text": "".join(read["files"].values())}


def _stack(asked: StackQuestion, nvml: dict[str, Any], hardware: dict[str, Any]) -> dict[str, Any]:
    """Its files go beside the hardware's, by their own paths; an environment on a file system that hangs costs its
    deadline. python: whether the interpreter is there, None where that can't be read."""
    devices = nvml.get("devices")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    device = str(first.get("name") or "").strip().replace(" ", "_")
    question = replace(asked, tuned=replace(asked.tuned, device=device))
    read = read_hardware("/", {STACK_PART: partial(environment.read_stack, question)})
    for kind, entries in read.items():
        hardware[kind].update(entries)
    hangs = STACK_PART in read["errors"] or "ETIMEDOUT" in read["errors"].values()
    python = None if hangs else os.path.exists(f"{asked.venv}/bin/python3")
    return {"venv": asked.venv, "name": asked.name, "python": python}


def host_facts(root: str) -> dict[str, Any]:
    """Facts that are no file: who and where we are, what this process may use, which addresses there are."""
    uname = os.uname()
    facts: dict[str, Any] = {
        "hostname": uname.nodename,
        "uname": {name: getattr(uname, name) for name in ("sysname", "release", "version", "machine")},
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "uid": os.geteuid(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "limits": {name: list(resource.getrlimit(which)) for name, which in _LIMITS.items()},
        "limits_attainable": {name: _attainable(_LIMITS[name]) for name in _RAISED_FOR_AN_ENGINE},
        "systemd": os.path.isdir("/run/systemd/system"),
        "fs_root": root,
        **_devices(root),
        "libibverbs": _can_load("libibverbs.so.1"),
        "kernel_log": driver_errors(root),
        **_user(),
        **_shm(),
    }
    try:
        facts["addresses"] = addresses()
    except OSError as error:
        facts["addresses"] = {}
        facts["addresses_error"] = str(error)
    with contextlib.suppress(OSError):  # a kernel without data centre bridging
        facts["flow_control"] = flow_control()
    return facts


def _attainable(which: int) -> list[int]:
    """[soft, hard] after raising a limit as far as this process may, as the agent does for its engine; -1: no limit.

    The limit is this process's own, and goes with it.
    """
    soft, hard = resource.getrlimit(which)
    for value in (resource.RLIM_INFINITY, hard):
        try:
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError):
            continue
        break
    raised = list(resource.getrlimit(which))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (soft, raised[1]))
    return raised


def _can_load(library: str) -> bool | None:
    """None where it is there and can't be loaded, which may be for want of memory."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return False if "No such file" in str(error) else None
    return True


def _user() -> dict[str, str]:
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {"user": "", "home": os.environ.get("HOME", "")}
    return {"user": entry.pw_name, "home": os.environ.get("HOME") or entry.pw_dir}


def _shm() -> dict[str, int]:
    """Bytes that /dev/shm can hold and has free."""
    try:
        size = os.statvfs(_SHM)
    except OSError:
        return {}
    return {"shm_bytes": size.f_frsize * size.f_blocks, "shm_free_bytes": size.f_frsize * size.f_bavail}


def _devices(root: str) -> dict[str, Any]:
    """Device files that a GPU engine opens: /dev/nvidia*, /dev/infiniband/*; devices_error: why they may be more."""
    base = root.rstrip("/")
    files_read: list[str] = []
    unread: dict[str, str] = {}
    for folder in _DEVICE_FOLDERS:
        try:
            names = os.listdir(f"{base}{folder}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unread["devices_error"] = f"{folder}: {errno_name(error)}"
            continue
        files_read += [
            f"{folder}/{name}" for name in names if folder != "/dev" or name.startswith(("nvidia", "gdrdrv"))
        ]
    return {"devices": sorted(files_read), **unread}


def free_space(places: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By the places' names: {"device": number of the file system, "bytes", "free_bytes": what its users may still
    write}, or {"error": errno name}. places: directories by name.

    A file system that hangs costs its deadline, as a file that hangs does.
    """
    room = read_hardware("/", {name: partial(_ask_room, name, path) for name, path in places.items()})["files"]
    return {name: json.loads(room[name]) if name in room else {"error": "ETIMEDOUT"} for name in places}


def _ask_room(name: str, path: str, reader: SnapshotReader) -> None:
    reader.begin(name)
    if name not in reader.skip:
        reader.files[name] = json.dumps(_room(path))


def _room(path: str) -> dict[str, Any]:
    while True:
        try:
            size, device = os.statvfs(path), os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path.rstrip("/")) or "/"
            continue
        except OSError as error:
            return {"error": errno_name(error)}
        unit = size.f_frsize
        return {"device": device, "bytes": unit * size.f_blocks, "free_bytes": unit * size.f_bavail}
