"""Files in a node's root besides the host's own: its name, its engine's launcher, its models, NVML."""

from __future__ import annotations

import json
import platform
import shlex
import uuid
from pathlib import Path

from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.hardware.realise import digest
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.node import bare, models, sshd
from l40s_lab.node import systemd as systemd_files
from l40s_lab.node.tree import FileTree
from l40s_lab.nvml import config, library
from orchestrator import engines
from orchestrator.engines.registry import dialects, newest
from orchestrator.loading.profiles import load_stack
from orchestrator.model.profile import Stack

LAB_HOME = "/opt/l40s/lab"
VENVS = "/opt/l40s/venvs"
MODELS = "/workspace"
PLAYS = {
    family.stack: load_stack(family.stack).engine_version
    for family in dialects().values()
    if family.product == "SGLang"
}
"""Stacks that the stand-in can play, with the engine version for each."""
STANDIN = Path(__file__).parents[1] / "standin"
_VERBS = "libibverbs.so.1"
_FLAGS = Path(engines.__file__).parent / "flags"
"""The flags of each engine version; the stand-in refuses all others."""


def render(blueprint: Blueprint, node: NodeMachine) -> FileTree:
    """The tree below / of a node in namespaces, as a layer above the real root."""
    if blueprint.devices:
        return identity(blueprint, node)
    tree = identity(blueprint, node)
    tree.opaque |= {MODELS, "/opt/l40s"}
    libraries = _library_folder(blueprint.rootfs)
    tree.put(f"{libraries}/{library.NAME}", library.build().read_bytes(), 0o755)
    tree.update(verbs_library(libraries, blueprint.rootfs))
    if blueprint.engine == "none":
        tree.update(bare.render(_modules("").files))
    else:
        tree.update(engine_files(LAB_HOME, VENVS, exports=played(blueprint.deaths)))
        tree.update(models.render(MODELS))
    if node.recording is not None:
        for path, text in node.recording.etc.items():
            tree.put(path, text.encode(errors="surrogateescape"))
    if blueprint.level == 2:
        tree.update(systemd_files.render(node))
    return tree


def identity(blueprint: Blueprint, node: NodeMachine) -> FileTree:
    """Files that distinguish the node from this machine: names, and its own machine id."""
    tree = FileTree()
    tree.put("/etc/hostname", node.node)
    tree.put("/etc/hosts", hosts(blueprint).encode())
    tree.put("/etc/machine-id", uuid.UUID(bytes=digest(node.seed, "machine")[:16], version=4).hex)
    tree.put("/etc/resolv.conf", b"")
    return tree


def verbs_library(folder: str, rootfs: str) -> FileTree:
    """A file to load as libibverbs if the nodes' root has none: the only check is whether it can be loaded."""
    tree = FileTree()
    if not Path(f"{rootfs}/{_library_folder(rootfs)}/{_VERBS}").exists():
        tree.put(f"{folder}/{_VERBS}", library.build().read_bytes(), 0o755)
    return tree


def devices(node: NodeMachine) -> tuple[str, ...]:
    """Names below /dev on a node with such cards; they are empty files, only there to be found."""
    cards = sum(bool(interface.rdma) for interface in node.interfaces)
    return ("kmsg", *(f"infiniband/uverbs{number}" for number in range(cards)))


def hosts(blueprint: Blueprint) -> str:
    """/etc/hosts of every node."""
    lines = ["127.0.0.1 localhost", f"{blueprint.controller} controller"]
    lines += [f"{blueprint.address(index)} {name}" for index, name in enumerate(blueprint.nodes)]
    return "\n".join(lines) + "\n"


def played(deaths: str) -> str:
    """Shell lines that tell the stand-in how its ranks die."""
    return f"export STANDIN_DEATHS={shlex.quote(deaths)}\n" if deaths != "plain" else ""


def engine_files(home: str, venvs: str, *, exports: str = "", below: str = "") -> FileTree:
    """The stand-in in `home`, and for each stack that it plays a virtual environment whose python3 starts it.

    exports: shell lines that the launchers run first
    below:   the directory that the tree will be written to, '' if it is a node's own root
    """
    tree = _modules(f"{home}/")
    for stack, version in PLAYS.items():
        tree.put(f"{venvs}/{stack}/bin/python3", _launcher(f"{below}{home}", version, exports).encode(), 0o755)
        tree.update(_packages(f"{venvs}/{stack}/lib/python3/site-packages", load_stack(stack)))
    return tree


def _modules(prefix: str) -> FileTree:
    """The stand-in, and the modules by which programs start it."""
    tree = FileTree()
    for file in sorted(STANDIN.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            tree.put(f"{prefix}standin/{file.relative_to(STANDIN)}", file.read_bytes())
    for file in sorted(_FLAGS.glob("sglang-*.json")):
        tree.put(f"{prefix}standin/flags/{file.name}", file.read_bytes())
    tree.put(f"{prefix}sglang/__init__.py", b"")
    tree.put(f"{prefix}sglang/launch_server.py", _LAUNCH_SERVER.encode())
    tree.put(f"{prefix}sglang/benchmark/__init__.py", b"")
    for module in ("bench_serving", "benchmark/serving"):
        tree.put(f"{prefix}sglang/{module}.py", _BENCH.encode())
    return tree


def _packages(site: str, stack: Stack) -> FileTree:
    """Names that show which packages are installed: the stack's own versions, without the packages."""
    versions = {
        "sglang": stack.engine_version,
        "torch": stack.torch_version,
        "triton": stack.triton_version,
        "nvidia_nccl_cu12": stack.nccl_version,
    }
    tree = FileTree()
    for package, version in versions.items():
        if version:
            tree.put(f"{site}/{package}-{version}.dist-info/WHEEL", b"Wheel-Version: 1.0\n")
    return tree


_LAUNCH_SERVER = f"""import os, sys
from standin.__main__ import main
sys.exit(main(sys.argv[1:], os.environ.get("STANDIN_PLAYS", "{PLAYS[newest().stack]}")))
"""
"""The module that starts every SGLang, for programs that import it by name."""
_BENCH = """import sys
from standin.bench import main
sys.exit(main(sys.argv[1:]))
"""
"""SGLang's serving benchmark, as the older and the newer versions call it."""


def _launcher(home: str, version: str, exports: str) -> str:
    return f"""#!/bin/sh
# An emulated node's engine: `python3 -m sglang.launch_server ...` starts the stand-in that plays {version};
# anything else is the system's own python3.
{exports}while [ $# -gt 0 ]; do
  case "$1" in
    -u | -B | -s) shift ;;
    *) break ;;
  esac
done
if [ "$1" = -m ] && [ "$2" = sglang.launch_server ]; then
  shift 2
  export PYTHONPATH={shlex.quote(home)}
  exec /usr/bin/python3 -m standin --plays {version} -- "$@"
fi
if [ "$1" = -m ] && {{ [ "$2" = sglang.bench_serving ] || [ "$2" = sglang.benchmark.serving ]; }}; then
  shift 2
  export PYTHONPATH={shlex.quote(home)}
  exec /usr/bin/python3 -m standin.bench "$@"
fi
if [ "$3" = sglang.launch_server ]; then # by a script that adds arguments out of a file
  export PYTHONPATH={shlex.quote(home)} STANDIN_PLAYS={version}
fi
exec /usr/bin/python3 "$@"
"""


def write_nvml_state(folder: Path, node: NodeMachine) -> None:
    """nvml.conf, and the directory where processes claim GPU memory; any process may claim, and release only its own"""
    (folder / "nvml.conf").write_text(config.render(node))
    (folder / "gpu-claims").mkdir(exist_ok=True)
    (folder / "gpu-claims").chmod(0o1777)
    write_name(folder, node.node)


def write_name(folder: Path, name: str) -> None:
    """node.json: the node's name."""
    (folder / "node.json").write_text(json.dumps({"node": name}))


def sshd_config(address: str, port: int) -> str:
    """Level 1's sshd, for root only."""
    return f"""Port {port}
ListenAddress {address}
HostKey /run/sshd/host_key
AuthorizedKeysFile /run/sshd/authorized_keys
PermitRootLogin prohibit-password
PidFile /run/sshd/sshd.pid
{sshd.ALL_LEVELS}{sshd.WITHOUT_PAM}"""


def _library_folder(rootfs: str) -> str:
    """The directory that the dynamic linker searches by default in that root's distribution."""
    debian = f"/usr/lib/{platform.machine()}-linux-gnu"
    return debian if Path(rootfs + debian).is_dir() else "/usr/lib64"
