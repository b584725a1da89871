"""`python3 scripts/gpu_install.py KIT`: unpack what scripts/gpu_kit.py built, on the GPU machine, as root.

By the Python that has torch: the engine's environment takes CUDA's libraries from there, and torch where the kit brings
none. Of a kit that comes in several loads each call takes the pieces in KIT and unpacks what is complete. This checkout
is what runs: the environment at /opt/l40s-gpu/venv finds orchestrator and tests in it. For a machine that is thrown
away afterwards: it writes below /opt, /usr and /etc.
"""

from __future__ import annotations

import concurrent.futures
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
HOME = Path("/opt/l40s-gpu")
VENVS = Path("/opt/l40s/venvs")
STACK = "sglang-0.5.23-triton"
ROUTER = "smg-1.13.0"
AS_INSTALLED = ("torch", "triton", "nvidia_nccl_cu13")
"""Packages whose version the product looks up in the engine's environment: the machine's where the kit has none."""
TOOLS = {
    "sshd": "/usr/sbin/sshd",
    "ssh": "/usr/bin/ssh",
    "ssh-keygen": "/usr/bin/ssh-keygen",
    "ip": "/usr/sbin/ip",
    "py-spy": "/usr/bin/py-spy",
}
DRIVER = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")


def main(kit: Path) -> int:
    """Whatever is complete, side by side."""
    began = time.monotonic()
    parts = {"control": control, "router": router, "engine": engine, "torch": engine, "triton": engine}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = {name: pieces for name, pieces in received(kit).items() if not (HOME / f"{name}.there").exists()}
        done = {pool.submit(parts[name], joined(name, pieces)): name for name, pieces in waiting.items()}
        for one in concurrent.futures.as_completed(done):
            one.result()
            (HOME / f"{done[one]}.there").touch()
            print(f"installed {done[one]} after {time.monotonic() - began:.1f} s", flush=True)
    environment()
    driver()
    return 0


def received(kit: Path) -> dict[str, list[Path]]:
    """part -> its pieces, where this load and those before it have them all."""
    kept = HOME / "kit"
    kept.mkdir(parents=True, exist_ok=True)
    for piece in kit.glob("*.tar.xz.*of*"):
        shutil.copy(piece, kept)
    found: dict[str, dict[int, Path]] = {}
    counts = {}
    for piece in kept.iterdir():
        named = re.fullmatch(r"(\w+)\.tar\.xz\.(\d+)of(\d+)", piece.name)
        if named:
            found.setdefault(named[1], {})[int(named[2])] = piece
            counts[named[1]] = int(named[3])
    return {
        name: [pieces[number] for number in sorted(pieces)]
        for name, pieces in found.items()
        if len(pieces) == counts[name]
    }


def joined(name: str, pieces: Sequence[Path]) -> Path:
    """One archive again."""
    archive = HOME / f"{name}.tar.xz"
    with archive.open("wb") as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())
    return archive


def control(archive: Path) -> None:
    """Our own environment, and the tools where the machine has none."""
    unpack(archive, HOME)
    packages = venv(HOME / "venv")
    (packages / "l40s-gpu.pth").write_text(f"{HOME}/site\n{CHECKOUT}/src\n{CHECKOUT}/lab/src\n{CHECKOUT}\n")
    lab = packages / "l40s_lab-0.dist-info"
    lab.mkdir(exist_ok=True)
    (lab / "METADATA").write_text("Metadata-Version: 2.1\nName: l40s-lab\nVersion: 0\n")
    (lab / "entry_points.txt").write_text("[l40s_deploy.verbs]\nlab = l40s_lab.command\n")
    for name, place in TOOLS.items():
        if not Path(place).exists():
            Path(place).write_text(
                f'#!/bin/sh\nLD_LIBRARY_PATH={HOME}/tools/lib exec {HOME}/tools/bin/{name} "$@"\n', encoding="utf-8"
            )
            Path(place).chmod(0o755)
    users = Path("/etc/passwd")
    if "\nsshd:" not in users.read_text(encoding="utf-8"):
        with users.open("a", encoding="utf-8") as file:
            file.write("sshd:x:74:65534::/run/sshd:/usr/sbin/nologin\n")


def router(archive: Path) -> None:
    """An environment as the product expects it."""
    unpack(archive, venv(VENVS / ROUTER))


def engine(archive: Path) -> None:
    """A part of the environment whose own packages come first and the machine's after them."""
    packages = venv(VENVS / STACK)
    unpack(archive, packages)
    python = packages.parents[2] / "bin/python3"
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", packages], capture_output=True, check=False)


def environment() -> None:
    """What the engine's environment takes from the machine."""
    packages, machines = venv(VENVS / STACK), Path(sysconfig.get_paths()["purelib"])
    (packages / "zz-machine.pth").write_text(f"import site; site.addsitedir({str(machines)!r})\n")
    own = (packages / "torch").is_dir()
    for name in AS_INSTALLED:
        for found in machines.glob(f"{name}-*.dist-info"):
            if not own:
                link(packages / found.name, found)
            elif (packages / found.name).is_symlink():
                (packages / found.name).unlink()
    if own:  # torch looks for CUDA's libraries beside itself
        (packages / "nvidia").mkdir(exist_ok=True)
        for library in (machines / "nvidia").iterdir():
            if not (packages / "nvidia" / library.name).exists():
                link(packages / "nvidia" / library.name, library)
    ninja = Path(sys.executable).parent / "ninja"
    if ninja.exists():
        link(packages.parents[2] / "bin/ninja", ninja)


def driver() -> None:
    """The driver's libraries by the loader's own list, as on an ordinary host."""
    found = [folder for folder in DRIVER if Path(folder).is_dir()]
    if found:
        Path("/etc/ld.so.conf.d/000-nvidia.conf").write_text(
            "".join(f"{folder}\n" for folder in found), encoding="utf-8"
        )
        subprocess.run(["ldconfig"], check=True)


def venv(folder: Path) -> Path:
    """Make it where it is missing; returns its site-packages."""
    if not (folder / "bin/python3").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    return packages


def unpack(archive: Path, folder: Path) -> None:
    """One of our own archives."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r|*") as packed:
        packed.extractall(folder, filter="fully_trusted")  # noqa: S202


def link(place: Path, target: Path) -> None:
    """Again and again."""
    place.unlink(missing_ok=True)
    place.symlink_to(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute()))
