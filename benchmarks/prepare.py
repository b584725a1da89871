"""`prepare` that has nothing to do, as a whole process, beside plain `ansible-playbook` of the same play.

Wanted: at most 1.3 times ansible-playbook as it comes out of the box (pipelining off, forks 5).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from common import BIN, REPOSITORY, command, lab, report, timed

sys.path.insert(0, str(REPOSITORY))
from tests.support.wheels import small_stack

RUNS = 3
NODES = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, lab("bench-prepare", "--nodes", str(NODES)) as inventory:
        stack, bundle = _bundle(Path(folder))
        hosts = _inventory(inventory, Path(folder))
        words = ["--stack", str(stack), "--bundle", str(bundle)]
        prepare = command("prepare", "-i", str(hosts), *words)
        timed(prepare, runs=1)
        variables = _variables(hosts, stack, bundle, Path(folder))
        play = [str(BIN / "ansible-playbook"), str(REPOSITORY / "playbooks" / "prepare.yml"), "-i", str(hosts)]
        pairs = [(timed(prepare, runs=1), timed([*play, "-e", f"@{variables}"], runs=1)) for _ in range(RUNS)]
        ours, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    report(
        f"prepare with nothing to do, {NODES} nodes, whole process, median",
        [
            ("l40s-deploy prepare", ours, ""),
            ("ansible-playbook prepare.yml", plain, f"prepare takes {ours / plain:.2f} of it"),
        ],
    )


def _bundle(folder: Path) -> tuple[Path, Path]:
    stack, bundle = small_stack(folder / "stack", _python()), folder / "small.bundle"
    subprocess.run(
        command("stack", "build", str(stack), "--out", str(bundle), "--find-links", str(stack.parent / "wheels")),
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},
        check=True,
        timeout=60,
        capture_output=True,
    )
    return stack, bundle


def _inventory(inventory: Path, folder: Path) -> Path:
    """The lab's, where only packages are wanted that its nodes have: they reach no package source."""
    document = yaml.safe_load(inventory.read_text())
    document["all"]["vars"]["system_packages_wanted"] = ["gcc", "libc6-dev"]
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def _variables(hosts: Path, stack: Path, bundle: Path, folder: Path) -> Path:
    """What `prepare` gives to the play."""
    from orchestrator.hosts.steps.prepare import PrepareRequest, play_variables
    from orchestrator.loading.inventory import load_inventory

    request = PrepareRequest(stack=str(stack), bundle=bundle)
    path = folder / "variables.json"
    path.write_text(json.dumps(play_variables(tuple(load_inventory(hosts).nodes), request, folder)))
    return path


def _python() -> str:
    show = 'import sys; print("%d.%d" % sys.version_info[:2])'
    return subprocess.run(["/usr/bin/python3", "-c", show], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
