"""A podman that runs on this machine, with its own store, and an image of the lab's root file system.

If podman can't use this machine's control groups or limits, a wrapper of the program `podman` works around that, so
that the product's command lines stay the same.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from l40s_lab.node import rootfs
from orchestrator.protocol.errors import NodeError

WRAPPER = """#!/bin/sh
# A control group file system of its own kind alone, and no limits that this machine can't give.
podman="{podman} --root {folder}/store --runroot {folder}/run --cgroup-manager cgroupfs"
case $1 in
run) shift; set -- run --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@" ;;
esac
exec unshare --mount --propagation private sh -c 'umount -R /sys/fs/cgroup/unified 2>/dev/null
mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"' sh $podman "$@"
"""


@contextmanager
def own_podman() -> Iterator[Path]:
    """The folder of a `podman` that runs here; a short path, since podman refuses a runroot above 50 characters."""
    folder = Path(tempfile.mkdtemp(prefix="l40s-podman-", dir="/tmp"))
    (folder / "bin").mkdir()
    program = folder / "bin" / "podman"
    program.write_text(WRAPPER.format(podman=shutil.which("podman"), folder=folder))
    program.chmod(0o755)
    try:
        yield folder / "bin"
    finally:
        subprocess.run([program, "rm", "--force", "--all"], capture_output=True, timeout=60, check=False)
        subprocess.run(
            ["sh", "-c", f"umount -R {folder}/store/overlay; true"], capture_output=True, timeout=60, check=False
        )
        shutil.rmtree(folder, ignore_errors=True)


def root_image(podman: Path) -> str:
    """The id of an image of the lab's root file system; the test is skipped if it can't be made."""
    try:
        root = rootfs.ensure(print)
    except NodeError as error:
        pytest.skip(f"no root file system for an image: {error.what}")
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        made = subprocess.run(
            [podman / "podman", "import", "-"],
            stdin=tar.stdout,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if made.returncode:
        pytest.skip(f"podman can't keep an image here: {made.stderr.strip()}")
    return made.stdout.strip().splitlines()[-1].removeprefix("sha256:")
