"""The recipe of sglang-0.4.4-l40s built by podman, every step from its own files; what they would fetch is made here.

The base image is the lab's root file system with the real sglang 0.4.4.post3 of its wheel and stubs beside it; the
branch's repository is in it. A wrapper of the program answers in place of the registry only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.test_recipe import GEMM, MOE, branch, site, wheel
from tests.support.podman import own_podman, root_image

from orchestrator.hosts.steps.stack import write_recipe
from orchestrator.loading.profiles import load_stack

__all__ = ["branch", "site", "wheel"]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.installs,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="podman is tried as root"),
    pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed"),
]
STACK = "sglang-0.4.4-l40s"
PROGRAM = """#!/bin/sh
# The registry is played: the base image is at hand, and its digest made up. The branch's commit is the one made here.
case "$1 $2" in
"pull --quiet") echo "$3" >>{folder}/pulled ;;
"image inspect") echo {base} ;;
"build --file") shift; exec {podman} build --isolation chroot --build-arg COMMIT={commit} "$@" ;;
*) exec {podman} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    with own_podman() as folder:
        yield folder


def repository(layers: Path, folder: Path) -> str:
    """A repository with the branch's files below python/sglang/srt/layers; its commit."""
    inside = folder / "python/sglang/srt/layers"
    shutil.copytree(layers, inside)
    git = ("git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "configs"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def base_image(podman: Path, site: Path, repo: Path, folder: Path) -> str:
    """The lab's root file system, this machine's git, and a Python that has these packages."""
    folder.mkdir()
    shutil.copytree(site, folder / "site")
    shutil.copytree(repo, folder / "branch.git", symlinks=True)
    shutil.copy("/usr/bin/git", folder / "git")
    (folder / "gitconfig").write_text(
        '[safe]\n\tdirectory = *\n[url "/branch.git"]\n\tinsteadOf = https://github.com/solrex/sglang.git\n'
    )
    (folder / "Containerfile").write_text(
        f"FROM {root_image(podman)}\n"
        "COPY site /usr/local/lib/python3.11/dist-packages\n"
        "COPY branch.git /branch.git\n"
        "COPY gitconfig /etc/gitconfig\n"
        "COPY git /usr/bin/git\n"
        "RUN ln -s git /usr/bin/git-upload-pack && git --version && python3 -c 'import sgl_kernel'\n"
    )
    words = ("build", "--quiet", "--isolation", "chroot", "--file", str(folder / "Containerfile"), str(folder))
    return run(podman, *words).strip().splitlines()[-1]


def test_every_step_of_the_recipe_is_built_and_checked(podman: Path, site: Path, branch: Path, tmp_path: Path) -> None:
    commit = repository(branch, tmp_path / "repository")
    image = base_image(podman, site, tmp_path / "repository", tmp_path / "base")
    program = tmp_path / "bin/podman"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(folder=tmp_path, base=image, podman=podman / "podman", commit=commit))
    program.chmod(0o755)
    write_recipe(STACK, tmp_path / "out")
    done = subprocess.run(
        [tmp_path / "out/build.sh"],
        env={**os.environ, "PROGRAM": "podman", "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "pulled").read_text() == "docker.io/lmsysorg/sglang:v0.4.4.post3-cu124\n"
    assert "2 tuned configs; sglang is what the stack's file says" in done.stdout + done.stderr

    built = (tmp_path / "out/image.id").read_text().strip().removeprefix("sha256:")
    made = json.loads(run(podman, "image", "inspect", built))[0]
    assert made["Labels"]["org.opencontainers.image.version"] == "0.4.4.post3-l40s"
    layers = "/usr/local/lib/python3.11/dist-packages/sglang/srt/layers"
    wanted = (f"{layers}/moe/fused_moe_triton/configs/{MOE}", f"{layers}/quantization/configs/{GEMM}")
    said = run(podman, "run", "--rm", "--network", "host", built, "ls", *wanted, "/tmp")
    assert all(path in said.splitlines() for path in wanted) and "branch" not in said.splitlines()

    stack = load_stack(str(tmp_path / f"out/inventory/stacks/{STACK}.yml"))
    assert stack.image == f"sha256:{built}" and stack.install == "podman"


def run(podman: Path, *words: str) -> str:
    done = subprocess.run([podman / "podman", *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
