"""Bare nodes, with neither engine nor models: what `prepare` and `checkpoint download` bring, without a network."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from l40s_lab.engine.environment import BUILD_DEADLINE_S, built_once, cache_root, python_version
from l40s_lab.node import models
from l40s_lab.node.tree import FileTree
from l40s_lab.standin.hub import HUB
from orchestrator.hosts.steps import parts
from orchestrator.loading.profiles import load_profile, load_stack

STACK = Path(__file__).with_name("standin.yml")
"""The stand-in as a stack that can be installed; its lock is beside it."""
DEBS = "/srv/l40s-lab/debs"
_WHEELS = "/srv/l40s-lab/wheels"
_REPO = "deepseek-ai/DeepSeek-V3-0324"


def ensure_debs(rootfs: str, say: Callable[[str], None]) -> Path:
    """The Debian packages that `prepare` installs above this root file system, with their dependencies and an index;
    fetched if it does not exist yet. Raises DeployError with apt's own words."""
    wanted = (*parts.base_packages(), *parts.python_packages(python_version()))
    installed = Path(rootfs, "var/lib/dpkg/status").read_bytes()  # libc6-dev needs the very version of its libc6

    def build(fresh: Path) -> None:
        say("fetching the Debian packages that `prepare` installs; only once, about 100 MB")
        fresh.mkdir()
        parts.download_debs(wanted, fresh, deadline_s=BUILD_DEADLINE_S)

    digest = hashlib.sha256(installed + json.dumps(wanted).encode()).hexdigest()[:16]
    return built_once(cache_root() / "lab/debs" / digest, "the nodes' Debian packages", say, build)


def render(engine: Mapping[str, bytes]) -> FileTree:
    """The tree below /: apt and pip with their sources, and the hub's files. engine: SGLang's modules by path"""
    tree = FileTree()
    version = load_stack(str(STACK)).engine_version
    tree.put("/etc/apt/sources.list", f"deb [trusted=yes] file:{DEBS} ./")
    tree.put("/etc/pip.conf", f"[global]\nno-index = true\nfind-links = {_WHEELS}")
    client = {"huggingface_hub/__init__.py": b"from standin.hub import HfApi, snapshot_download\n"}
    tree.put(f"{_WHEELS}/sglang-{version}-py3-none-any.whl", _wheel("sglang", version, {**engine, **client}))
    for name, content in models.checkpoint(load_profile(_REPO.partition("/")[2])).items():
        tree.put(f"{HUB}/{_REPO}/{name}", content)
    return tree


def _wheel(name: str, version: str, modules: Mapping[str, bytes]) -> bytes:
    info = f"{name}-{version}.dist-info"
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")).encode()
    made = io.BytesIO()
    with ZipFile(made, "w") as archive:
        for path, content in files.items():
            archive.writestr(ZipInfo(path), content)
    return made.getvalue()
