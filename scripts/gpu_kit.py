"""`python3.12 scripts/gpu_kit.py WORK OUT [PART ...]`: what tests/gpu needs on a GPU machine without a network.

WORK keeps what was downloaded and unpacked; OUT gets one archive a part, for scripts/gpu_install.py:

engine   SGLang of tests/gpu/kit/sglang-0.5.17.lock, less what the machine has itself (there.txt beside it) and less
         what a DeepSeek-V3 with Triton kernels never loads (never-loaded.txt)
router   smg
control  the Python packages that this checkout depends on; sshd, ssh, ssh-keygen and ip with their libraries

Run it by the Python that the machine has (3.12), on a glibc no newer than the machine's, as Debian 12 has. No GPU is
needed; the engine takes some ten minutes of one core, most of them for xz.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KIT = HERE / "tests/gpu/kit"
ROUTER = "smg==1.13.0"
TOOLS = ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/usr/bin/ip")
OF_THE_SYSTEM = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so", "libz.so")
"""Libraries that every machine has, and that have to be its own."""
OTHER_VERSION = {"transformers", "tokenizers"}
"""The machine has them, in a version that the engine does not take."""
PARTS_NEVER_LOADED = (
    "sgl_kernel/flash_ops*.so", "sgl_kernel/infllm_ops*.so", "sgl_kernel/flashmla_ops*.so", "sgl_kernel/sm100",
    "include", "lib", "xgrammar/lib", "flashinfer/data/cutlass/examples", "flashinfer/data/cutlass/test",
    "flashinfer/data/cutlass/python", "flashinfer/data/cutlass/media", "flashinfer/data/cutlass/docs",
    "mistral_common/data/*", "pycountry/locales", "torchao/_C_cutlass_90a*.so", "sglang/multimodal_gen",
    "sglang/srt/server/_core*.so", "sglang/srt/grpc/_core*.so", "sglang/srt/multimodal/_core*.so",
)  # fmt: skip


def main(work: Path, out: Path, parts: Iterable[str]) -> int:
    """Build these parts, or all of them."""
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    builders: dict[str, Callable[[Path], Path]] = {"control": control, "router": router, "engine": engine}
    for part in parts or builders:
        folder = builders[part](work)
        pack(folder, out / f"{part}.tar.xz")
        print(f"{part}: {(out / f'{part}.tar.xz').stat().st_size / 2**20:.1f} MiB", flush=True)
    return 0


def control(work: Path) -> Path:
    """site/ with the packages of pyproject.toml, tools/ with programs and their libraries."""
    folder = fresh(work / "control")
    listed = (HERE / "pyproject.toml").read_text().partition("\ndependencies = [\n")[2].partition("\n]")[0]
    wanted = re.findall(r'^ *"([^"]+)"', listed, re.MULTILINE)
    install(folder / "site", wanted)
    for name in ("ansible_test", "bin"):
        shutil.rmtree(folder / "site" / name, ignore_errors=True)
    for place in ("tools/bin", "tools/lib"):
        (folder / place).mkdir(parents=True)
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
    left_out = (names("there.txt") - OTHER_VERSION) | names("never-loaded.txt")
    venv = work / "venv"
    if not (venv / "complete").exists():
        run(sys.executable, "-m", "venv", str(venv))
        lock = (KIT / "sglang-0.5.17.lock").read_text().split()
        wanted = [one for one in lock if plain(one.partition("==")[0]) not in left_out]
        run(str(venv / "bin/pip"), "install", "-q", "--no-deps", "--no-compile", *wanted)
        (venv / "complete").touch()
    folder = fresh(work / "engine")
    (packages,) = venv.glob("lib/python3.*/site-packages")
    for package in importlib.metadata.distributions(path=[str(packages)]):
        if plain(package.metadata["Name"]) not in left_out:
            copy(package, packages, folder)
    for pattern in PARTS_NEVER_LOADED:
        for place in folder.glob(pattern):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    strip(folder, leave="sgl_kernel/")
    return folder


def copy(package: importlib.metadata.Distribution, packages: Path, folder: Path) -> None:
    """The files of one installed package."""
    for file in map(str, package.files or ()):
        source, target = packages / file, folder / file
        if file.startswith("..") or "__pycache__" in file or not source.is_file() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


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
    """xz with a large dictionary: 5 MB smaller than zstd, and every Python reads it."""
    new = archive.with_suffix(".new")
    words = ["tar", "-C", str(folder), "--sort=name", "--mtime=2026-01-01", "--owner=0", "--group=0", "-cf", "-", "."]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tar, new.open("wb") as file:
        subprocess.run(["xz", "-T1", "--lzma2=preset=9e,dict=192MiB", "-c"], stdin=tar.stdout, stdout=file, check=True)
    if tar.returncode:
        raise OSError(f"tar ended with {tar.returncode}")
    new.replace(archive)


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
