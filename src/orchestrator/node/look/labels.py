"""Verb `labels`: serial numbers, the BMC's address and the switch's ports, for the page that goes to the data centre.

Serial numbers and the BMC are root's to read; ipmitool and lldpcli are asked where they are installed, each with a
deadline. Of ipmitool's answer only addresses are kept: it shows the SNMP community too.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from orchestrator.node import files
from orchestrator.node.os_errors import errno_name
from orchestrator.node.requests import request_of
from orchestrator.protocol.looks import LabelsAnswer, LabelsRequest

SERIALS = ("chassis_serial", "product_serial", "board_serial")
_COMMANDS = {"bmc": ("ipmitool", "lan", "print"), "neighbours": ("lldpcli", "-f", "keyvalue", "show", "neighbors")}
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_DEADLINE_S = 8.0
_MOST_BYTES = 256 * 1024
_KEPT = ("IP Address  ", "MAC Address  ")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Everything at once; what is not there is said and costs nothing."""
    root = request_of(LabelsRequest, request).fs_root.rstrip("/")
    unread: dict[str, str] = {}
    serials = {name: text for name in SERIALS if (text := _serial(f"{root}/sys/class/dmi/id/{name}", name, unread))}
    with ThreadPoolExecutor(len(_COMMANDS)) as pool:
        asked = {name: pool.submit(_printed, command) for name, command in _COMMANDS.items()}
        answers = {name: each.result() for name, each in asked.items()}
    unread.update({name: why for name, (_, why) in answers.items() if why})
    bmc = tuple(line for line in answers["bmc"][0].splitlines() if line.startswith(_KEPT))
    return LabelsAnswer(
        serials=serials, bmc=bmc, neighbours=answers["neighbours"][0], macs=_burnt_in(root), unread=unread
    ).as_json()


def _serial(path: str, name: str, unread: dict[str, str]) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    except FileNotFoundError:
        return ""
    except OSError as wrong:
        unread[name] = errno_name(wrong)
        return ""


def _printed(command: tuple[str, ...]) -> tuple[str, str]:
    """(what a program printed, why it printed nothing)."""
    path = next((candidate for folder in _FOLDERS if os.access(candidate := f"{folder}/{command[0]}", os.X_OK)), "")
    if not path:
        return "", f"{command[0]} is not installed"
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
            env={"PATH": ":".join(_FOLDERS), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} gave no answer within {_DEADLINE_S:g} s"
    except OSError as wrong:
        return "", f"{command[0]}: {errno_name(wrong)}"
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return "", f"{command[0]}: {words[-1][:160] if words else f'exit code {done.returncode}'}"
    return done.stdout[:_MOST_BYTES].decode("utf-8", "replace"), ""


def _burnt_in(root: str) -> dict[str, str]:
    """MAC addresses of a bond's ports, which all show the bond's (Documentation/networking/bonding.rst)."""
    values: dict[str, str] = {}
    folder = f"{root}/proc/net/bonding"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        port = ""
        for line in (files.read_text(f"{folder}/{name}") or "").splitlines():
            key, _, value = line.partition(": ")
            if key == "Slave Interface":
                port = value.strip()
            elif key == "Permanent HW addr" and port:
                values[port] = value.strip()
    return values
