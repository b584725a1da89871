"""`python3 scripts/gpu_install.py KIT`: unpack what scripts/gpu_kit.py built, on the GPU machine, as root.

By the Python that has torch: the engine's environment takes torch and its libraries from there. Of a kit that comes in
several loads each call unpacks what lies in KIT. This checkout is what runs: the environment at /opt/l40s-gpu/venv
finds orchestrator and tests in it. For a machine that is thrown away afterwards: it writes below /opt, /usr and /etc.
"""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
HOME = Path("/opt/l40s-gpu")
VENVS = Path("/opt/l40s/venvs")
STACK = "sglang-0.5.17-triton"
ROUTER = "smg-1.13.0"
AS_INSTALLED = ("torch", "triton", "nvidia_nccl_cu13")
"""Packages of the machine whose version the product looks up in the engine's environment."""
TOOLS = {"sshd": "/usr/sbin/sshd", "ssh": "/usr/bin/ssh", "ssh-keygen": "/usr/bin/ssh-keygen", "ip": "/usr/sbin/ip"}
DRIVER = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")


def main(kit: Path) -> int:
    """Whatever is there, side by side."""
    began = time.monotonic()
    parts = {"control": control, "router": router, "engine": engine}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = {pool.submit(work, kit / f"{part}.tar.xz"): part for part, work in parts.items() if there(kit, part)}
        for one in concurrent.futures.as_completed(done):
            one.result()
            print(f"installed {done[one]} after {time.monotonic() - began:.1f} s", flush=True)
    driver()
    return 0


def there(kit: Path, part: str) -> bool:
    """This load of the kit has it."""
    return (kit / f"{part}.tar.xz").exists()


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
    """An environment whose own packages come first and the machine's after them."""
    packages = venv(VENVS / STACK)
    unpack(archive, packages)
    machines = Path(sysconfig.get_paths()["purelib"])
    (packages / "zz-machine.pth").write_text(f"import site; site.addsitedir({str(machines)!r})\n")
    for name in AS_INSTALLED:
        for found in machines.glob(f"{name}-*.dist-info"):
            link(packages / found.name, found)
    ninja = Path(sys.executable).parent / "ninja"
    if ninja.exists():
        link(packages.parents[2] / "bin/ninja", ninja)
    python = packages.parents[2] / "bin/python3"
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", packages], capture_output=True, check=False)


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
