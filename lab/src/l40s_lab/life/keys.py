"""SSH keys of a lab: the controller's, and one host key per node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from l40s_lab.life.blueprint import Blueprint


def make(blueprint: Blueprint) -> None:
    """Create all keys, and the known_hosts file for all nodes."""
    folders = [blueprint.path / "nodes" / name for name in blueprint.nodes]
    for folder in folders:
        folder.mkdir(parents=True)
    _generate([blueprint.path / "client", *(folder / "host_key" for folder in folders)])
    lines = []
    for index, folder in enumerate(folders):
        kind, key = (folder / "host_key.pub").read_text().split()[:2]
        address = blueprint.address(index)
        name = address if blueprint.port == 22 else f"[{address}]:{blueprint.port}"
        lines.append(f"{name} {kind} {key}\n")
    (blueprint.path / "known_hosts").write_text("".join(lines))


def _generate(paths: Iterable[Path]) -> None:
    running = [
        subprocess.Popen(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "l40s-deploy-lab", "-f", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for path in paths
    ]
    for process in running:
        _, trouble = process.communicate(timeout=30)
        if process.returncode:
            raise OSError(f"ssh-keygen: {trouble.decode(errors='replace').strip()}")
