"""`PYTHONPATH=src python3.12 scripts/gpu_kit.py WORK OUT [PART ...]`: what GPU tests need without a network.

WORK keeps what was downloaded and unpacked; OUT gets one archive a part, for scripts/gpu_install.py:

engine   SGLang of inventory/stacks/sglang-0.5.23.lock, less what the machine has itself (there.txt beside this kit's
         stack file), less what a DeepSeek-V3 with Triton kernels never loads (never-loaded.txt)
torch    torch, torchvision and NCCL of the same lock, with machine code for SM90 alone
triton   Triton of the same lock
router   smg
control  the Python packages that this checkout depends on; sshd, ssh, ssh-keygen and ip with their libraries, and
         py-spy

An archive of more than 15 MiB is cut into pieces, for machines that take only so much a call.
Run it by the Python that the machine has (3.12), on a glibc no newer than the machine's, as Debian 12 has. No GPU is
needed; it takes some ten minutes of two cores, most of them for xz.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.tuning.gpu_code import code_places

HERE = Path(__file__).resolve().parents[1]
KIT = HERE / "tests/gpu/kit"
LOCK = HERE / "inventory/stacks/sglang-0.5.23.lock"
ROUTER = "smg==1.13.0"
PIECE = 15 << 20
TOOLS = ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/usr/bin/ip")
STACKS_OF_RANKS = "py-spy"
"""A program in a package of its name; an agent that looks at a hang finds it on its path."""
OF_THE_SYSTEM = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so", "libz.so")
"""Libraries that every machine has, and that have to be its own."""
OTHER_VERSION = {"transformers", "tokenizers"}
"""The machine has them, in a version that the engine does not take."""
PARTS_NEVER_LOADED = (
    "sgl_kernel/flash_ops*.so", "sgl_kernel/infllm_ops*.so", "sgl_kernel/flashmla_ops*.so",
    "include", "lib", "xgrammar/lib", "flashinfer/data/cutlass/examples", "flashinfer/data/cutlass/test",
    "flashinfer/data/cutlass/python", "flashinfer/data/cutlass/media", "flashinfer/data/cutlass/docs",
    "flashinfer/data/csrc/cake_*", "flashinfer/data/csrc/kda", "flashinfer/data/csrc/gdn",
    "flashinfer/data/csrc/experimental", "flashinfer/data/csrc/blackwell_*",
    "mistral_common/data/*", "pycountry/locales", "sglang/multimodal_gen", "deep_ep/*.so", "flash_mla/_C_legacy*.so",
    "nccl/m2n/lib", "nccl/ep/lib", "nvshmem/bindings/*.so",
    "torch/include", "torch/bin/protoc*", "triton/_C/libproton.so", "triton/instrumentation",
    "triton/backends/amd/lib", "triton/backends/nvidia/lib/cupti*", "triton/backends/nvidia/bin/ptxas-blackwell",
    "triton/backends/nvidia/bin/nvdisasm", "triton/backends/nvidia/bin/cuobjdump", "nvidia/nccl/include",
    "nvidia/nccl/lib/*.bc",
)  # fmt: skip
OWN_ARCHIVE = {"torch": {"torch", "torchvision", "nvidia-nccl-cu13"}, "triton": {"triton"}}
"""Packages that travel by themselves; the machine has them too, in another version."""
KEPT_SM = 90
"""The GPU whose machine code stays in the libraries of torch, NCCL and the engine."""


def main(work: Path, out: Path, parts: Iterable[str]) -> int:
    """Build these parts, or all of them."""
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    builders: dict[str, Callable[[Path], Path]] = {
        "control": control,
        "router": router,
        "engine": engine,
        "torch": torch,
        "triton": triton,
    }
    for part in parts or builders:
        folder = builders[part](work)
        archive = out / f"{part}.tar.xz"
        pack(folder, archive)
        print(f"{part}: {archive.stat().st_size / 2**20:.1f} MiB", flush=True)
        cut(archive)
    return 0


def control(work: Path) -> Path:
    """site/ with the packages of pyproject.toml, tools/ with programs and their libraries."""
    folder = fresh(work / "control")
    listed = (HERE / "pyproject.toml").read_text().partition("\ndependencies = [\n")[2].partition("\n]")[0]
    wanted = re.findall(r'^ *"([^"]+)"', listed, re.MULTILINE)
    install(folder / "site", [*wanted, STACKS_OF_RANKS])
    for place in ("tools/bin", "tools/lib"):
        (folder / place).mkdir(parents=True)
    shutil.copy(folder / "site/bin" / STACKS_OF_RANKS, folder / "tools/bin")
    for name in ("ansible_test", "bin"):
        shutil.rmtree(folder / "site" / name, ignore_errors=True)
    for tool in TOOLS:
        shutil.copy(tool, folder / "tools/bin")
        for library in libraries(tool):
            shutil.copy(library, folder / "tools/lib")
    strip(folder / "tools", smallest=0)
    return folder


def router(work: Path) -> Path:
    """Its site-packages."""
    folder = fresh(work / "router")
    install(folder, [ROUTER])
    strip(folder)
    return folder


def engine(work: Path) -> Path:
    """Its site-packages, as far as they have to travel."""
    alone = set().union(*OWN_ARCHIVE.values())
    left_out = (names("there.txt") - OTHER_VERSION) | names("never-loaded.txt")
    wanted = {plain(name) for name in locked()} - left_out - alone
    return gathered(work, "engine", wanted)


def torch(work: Path) -> Path:
    """torch, torchvision and NCCL."""
    return gathered(work, "torch", OWN_ARCHIVE["torch"])


def triton(work: Path) -> Path:
    """Triton with its own ptxas."""
    return gathered(work, "triton", OWN_ARCHIVE["triton"])


def locked() -> dict[str, str]:
    """name -> version, of the lock."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))


def gathered(work: Path, part: str, wanted: set[str]) -> Path:
    """These packages of the lock as they are installed, less what never loads; without other GPUs' machine code."""
    venv = work / f"venv-{part}"
    if not (venv / "complete").exists():
        run(sys.executable, "-m", "venv", str(venv))
        words = [f"{name}=={version}" for name, version in locked().items() if plain(name) in wanted]
        run(str(venv / "bin/pip"), "install", "-q", "--no-deps", "--no-compile", *words)
        (venv / "complete").touch()
    folder = fresh(work / part)
    (packages,) = venv.glob("lib/python3.*/site-packages")
    for package in importlib.metadata.distributions(path=[str(packages)]):
        if plain(package.metadata["Name"]) in wanted:
            copy(package, packages, folder)
    for pattern in PARTS_NEVER_LOADED:
        for place in folder.glob(pattern):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    for library in folder.rglob("*.so*"):
        blank_other_gpus(library)
    strip(folder, leave="sgl_kernel/")
    return folder


def blank_other_gpus(library: Path) -> None:
    """Zeros in the place of machine code and PTX for other GPUs than KEPT_SM: CUDA picks by the headers, which stay,
    and zeros take no room in an archive."""
    said = subprocess.run(["readelf", "-SW", str(library)], capture_output=True, text=True, check=False).stdout
    sections = re.findall(r"\s(\.nv_fatbin|__nv_relfatbin)\s+\S+\s+\S+\s+([0-9a-f]+)\s+([0-9a-f]+)", said)
    if not sections:
        return
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for _, offset, size in sections:
            _blank(data, int(offset, 16), int(offset, 16) + int(size, 16))


def _blank(data: mmap.mmap, start: int, end: int) -> None:
    """One section; it stays as it is where an entry of another format stands in it."""
    with suppress(ValueError):
        for place in [place for places in code_places(data, start, end) for place in places]:
            if (place.form, place.arch) != ("sm", KEPT_SM):
                data[place.start : place.end] = bytes(place.end - place.start)


def copy(package: importlib.metadata.Distribution, packages: Path, folder: Path) -> None:
    """The files of one installed package."""
    for file in map(str, package.files or ()):
        source, target = packages / file, folder / file
        if file.startswith("..") or "__pycache__" in file or not source.is_file() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)  # ptxas has to stay executable


def install(folder: Path, wanted: Iterable[str]) -> None:
    """Wheels of this Python for any Linux of the last years."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 28, 27, 26, 17)]
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:"),
        *("--target", str(folder), "--python-version", "3.12", "--implementation", "cp"),
        *(*platforms, "--platform=manylinux2014_x86_64", *wanted),
    )


def libraries(program: str) -> list[str]:
    """What it is linked with, less what the machine has to have itself."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(\S+) => (/\S+)", said)
    return [path for name, path in found if not name.startswith(OF_THE_SYSTEM)]


def strip(folder: Path, *, smallest: int = 300 << 10, leave: str = "\0") -> None:
    """Take the symbols out of large libraries; what can't be stripped stays as it is."""
    for file in folder.rglob("*"):
        binary = ".so" in file.name or file.parent.name == "bin"
        if file.is_file() and binary and file.stat().st_size > smallest and leave not in str(file):
            subprocess.run(["strip", "--strip-unneeded", str(file)], capture_output=True, check=False)


def pack(folder: Path, archive: Path) -> None:
    """xz, which every Python reads; its fastest kind takes a fifth of the best one's time for an eighth more bytes."""
    words = ["tar", "-C", str(folder), "--sort=name", "--mtime=2026-01-01", "--owner=0", "--group=0", "-cf", "-", "."]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tar, archive.open("wb") as file:
        subprocess.run(["xz", "-T1", "--lzma2=preset=1,dict=64MiB", "-c"], stdin=tar.stdout, stdout=file, check=True)
    if tar.returncode:
        raise OSError(f"tar ended with {tar.returncode}")


def cut(archive: Path) -> None:
    """In its place pieces that say their number and how many there are: engine.tar.xz.2of4."""
    count = -(-archive.stat().st_size // PIECE)
    with archive.open("rb") as file:
        for number in range(1, count + 1):
            archive.with_name(f"{archive.name}.{number}of{count}").write_bytes(file.read(PIECE))
    archive.unlink()


def fresh(folder: Path) -> Path:
    """Empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def names(file: str) -> set[str]:
    """Packages, one a line."""
    return {plain(line) for line in (KIT / file).read_text().splitlines() if not line.startswith("#")}


def plain(name: str) -> str:
    """A package's name as PyPA normalises it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def run(*words: str) -> None:
    """At low priority, or not at all."""
    subprocess.run(words, check=True, preexec_fn=lambda: os.nice(10))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), sys.argv[3:]))
