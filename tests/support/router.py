"""The real router for labs: its environment, kept between runs, and the inventory's group for it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROUTER = "smg==1.13.0"
OLD_ROUTER = "sglang-router==0.3.2"
"""Its predecessor, which does not look at the model that a request names."""
ROUTER_PORTS = 3
"""Adjacent ports that `router_group` uses."""


class NotInstalled(Exception):
    """pip's last line of output."""


def router_environment(router: str = ROUTER) -> Path:
    """A virtual environment with the router alone. Raises NotInstalled."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = base / "l40s-deploy" / "test" / router.replace("==", "-")
    done = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one makes it, and the others find it
        if not done.exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", router]
            made = subprocess.run(pip, capture_output=True, text=True, timeout=240, check=False)
            if made.returncode:
                raise NotInstalled(f"{router} can't be installed here: {made.stderr.strip().splitlines()[-1:]}")
            done.touch()
    return folder


def router_group(environment: Path, folder: Path, port: int) -> dict[str, Any]:
    """Group `router` of an inventory: on this machine, with its state in `folder`; uses ROUTER_PORTS from `port` on."""
    return {
        "hosts": {"head": None},
        "vars": {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "l40s_router_venv": str(environment),
            "l40s_http_host": "127.0.0.1",
            "l40s_router_port": port,
            "l40s_router_metrics_port": port + 1,
            "l40s_agent_port": port + 2,
            "l40s_state_dir": str(folder),
        },
    }
