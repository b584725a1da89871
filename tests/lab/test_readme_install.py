"""README's first step on machines with the distribution's Python (PEP 668): its own commands, on a fresh system.

Replaced: the index is a folder of wheels, since a fresh system does not have this machine's access to an index.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from tests.support.waiting import slack

from l40s_lab.node.rootfs import Release, proxies, source_files, sources, this_release

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a fresh system is made and entered as root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
STEP = README.partition("## Quick start")[2].partition("\n2. ")[0]
USER = "newcomer"
UBUNTU = "http://archive.ubuntu.com/ubuntu"


@dataclass(frozen=True)
class System:
    """A distribution's release as README names it, the version of its python3, and where its packages come from."""

    name: str
    release: Release
    python: str
    mirrors: tuple[str, ...]


def systems() -> tuple[System, ...]:
    debian = Release("debian", "bookworm")
    own = sources(debian, source_files()) if this_release() == debian else []
    noble = tuple(f"deb [trusted=yes] {UBUNTU} {suite} main universe" for suite in ("noble", "noble-updates"))
    # trusted: its keyring is not in a Debian package, and nothing of this system outlasts the test
    return (
        System("Debian 12", debian, "3.11", tuple(own)),
        System("Ubuntu 24.04", Release("ubuntu", "noble"), "3.12", noble),
    )


def typed() -> list[str]:
    """The commands of the step, in their order."""
    return re.findall(r"^ {7}(\S.*)$", STEP, re.MULTILINE)


def reaches(mirrors: tuple[str, ...]) -> bool:
    for line in mirrors:
        url, suite = line.split("] ")[-1].removeprefix("deb ").split()[:2]
        try:
            with urllib.request.urlopen(f"{url}/dists/{suite}/Release", timeout=20 * slack()):
                pass
        except OSError:
            return False
    return True


@pytest.fixture(params=systems(), ids=lambda system: system.name)
def system(request: pytest.FixtureRequest) -> System:
    found: System = request.param
    assert found.name in STEP, "README names the systems that are tried here"
    if not reaches(found.mirrors):
        pytest.skip(f"no mirror of {found.name} answers")
    return found


@pytest.fixture
def root(system: System, tmp_path: Path) -> Iterator[Path]:
    """A freshly installed server: sudo, no Python beyond the distribution's, a user with a checkout of ours."""
    place = tmp_path / "root"
    made = subprocess.run(
        [
            *("mmdebstrap", "--variant=minbase", "--mode=root", "--include=apt,python3,sudo,ca-certificates"),
            '--aptopt=Acquire::Languages "none"',
            *(f"--aptopt={line}" for line in proxies()),
            *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")),
            f'--customize-hook=chroot "$1" useradd --create-home --shell /bin/bash {USER}',
            *(system.release.codename, str(place), *system.mirrors),
        ],
        capture_output=True,
        text=True,
        timeout=900 * slack(),
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    (place / "etc/sudoers.d/newcomer").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    shutil.copy("/etc/resolv.conf", place / "etc/resolv.conf")
    (place / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    checkout = place / "home" / USER / "l40s-deploy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, checkout / name)
    wheels(system.python, place / "wheels")
    ready = run(place, f"chown -R {USER} /home/{USER}\napt-get update -qq", user="root")
    assert ready.returncode == 0, ready.stderr
    yield place
    shutil.rmtree(place)


def wheels(python: str, folder: Path) -> None:
    """Everything that pip and pipx ask an index for."""
    ours = [line for line in metadata.requires("l40s-deploy") or () if "extra ==" not in line]
    builder = [line for line in metadata.requires("l40s-deploy") or () if line.startswith("hatchling")]
    wanted = [*ours, *(line.partition(";")[0] for line in builder), "pip", "setuptools", "wheel"]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--python-version", python]
    subprocess.run([*pip, "-d", str(folder), *wanted], check=True, timeout=900 * slack())


def run(root: Path, script: str, *, user: str = USER) -> subprocess.CompletedProcess[str]:
    """A script in a login shell on that system, with mounts of its own; it ends at the first command that fails."""
    inside = f"cd /home/{USER}/l40s-deploy && set -e\n{script}"
    offline = "PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1"
    enter = (
        f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} env -i {offline} "
        f"TERM=dumb su {user} -m -c {shlex.quote(f'export HOME=~{user}; . /etc/profile; {inside}')}"
    )
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", enter],
        capture_output=True,
        text=True,
        timeout=1200 * slack(),
        check=False,
    )


def test_its_commands_install_it(root: Path) -> None:
    (managed,) = root.glob("usr/lib/python3*/EXTERNALLY-MANAGED")
    assert managed.is_file(), "else it is no system that the step is about"
    script = "\n".join([*typed(), "l40s-deploy --version", "l40s-deploy doctor --explain >/dev/null"])
    done = run(root, f"export DEBIAN_FRONTEND=noninteractive\n{script}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "l40s-deploy 0." in done.stdout
    assert "pipx install ." in STEP
    done = run(root, "sudo apt-get install -y -qq pipx\npipx install .\n~/.local/bin/l40s-deploy --version")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "l40s-deploy 0." in done.stdout
