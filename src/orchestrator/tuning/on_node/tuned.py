"""Verb `tuned`: which tuned kernel configs this node's engine has, as raw text. Changes nothing, executes nothing."""

from __future__ import annotations

import errno
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from orchestrator.node import files
from orchestrator.node.look import environment
from orchestrator.node.requests import request_of
from orchestrator.protocol.looks import Holdings, TunedRequest

PACKAGE = "sglang"
MOST_BYTES = 1 << 20
"""Of one file; a config for 18 batch sizes has three kilobytes."""
MOST_FILES = 4096


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Read one environment."""
    asked = request_of(TunedRequest, request)
    venv, folders = pathlib.Path(asked.venv), asked.folders
    root = engine_root(venv)
    look = _FoldersRead(root, folders.device)
    if root is not None or folders.moe.startswith("/"):
        look.moe(folders.moe, by_triton=folders.by_triton)
    if root is not None:
        look.folder(folders.linear)
    return Holdings(
        root=str(root) if root else "",
        versions=environment.versions(venv),
        folders=look.folders,
        absent=tuple(look.absent),
        errors=look.errors,
    ).as_json()


def engine_root(venv: pathlib.Path) -> pathlib.Path | None:
    """The folder that holds the package `sglang`: site-packages, or what a .pth file of a source install names."""
    for site in environment.site_packages(venv):
        for candidate in (site, *_named_by_pth(site)):
            if (candidate / PACKAGE / "srt").is_dir():
                return candidate
    return None


def _named_by_pth(site: pathlib.Path) -> Iterator[pathlib.Path]:
    for file in sorted(site.glob("*.pth")):
        try:
            with open(files.opened(file), encoding="utf-8", errors="replace") as opened:
                lines = opened.read(MOST_BYTES).splitlines()
        except OSError:
            continue
        yield from (pathlib.Path(line) for line in lines if line.startswith("/"))


class _FoldersRead:
    """What was read so far."""

    def __init__(self, root: pathlib.Path | None, device: str) -> None:
        self._root, self._files = root, 0
        self._named = re.compile(rf"[EN]=\d+,[NK]=\d+,device_name={re.escape(device)}(,.*|_down)?\.json")
        self.folders: dict[str, dict[str, str]] = {}
        self.absent: list[str] = []
        self.errors: dict[str, str] = {}

    def moe(self, folder: str, *, by_triton: bool) -> None:
        """MoE configs: of every Triton version where they are kept apart."""
        if not by_triton:
            self.folder(folder)
            return
        for name in self._names(folder) or ():
            if name.startswith("triton_"):
                self.folder(f"{folder}/{name}")

    def folder(self, folder: str) -> None:
        """Every config for this GPU in one folder."""
        names = self._names(folder)
        if names is None:
            return
        texts = self.folders.setdefault(folder, {})
        for name in filter(self._named.fullmatch, names):
            if self._files < MOST_FILES and (text := self._text(f"{folder}/{name}")) is not None:
                self._files += 1
                texts[name] = text

    def _at(self, folder: str) -> pathlib.Path:
        return pathlib.Path(folder) if self._root is None else self._root / folder

    def _names(self, folder: str) -> list[str] | None:
        """None where it can't be listed, or is not there."""
        try:
            return sorted(os.listdir(self._at(folder)))
        except OSError as error:
            self.absent.append(folder)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.errors[folder] = errno.errorcode.get(error.errno or 0, "EIO")
            return None

    def _text(self, path: str) -> str | None:
        try:
            with open(files.opened(self._at(path)), "rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            self.errors[path] = errno.errorcode.get(error.errno or 0, "EIO")
            return None
        if len(data) > MOST_BYTES:
            self.errors[path] = "EFBIG"
            return None
        return data.decode("utf-8", "surrogateescape")
