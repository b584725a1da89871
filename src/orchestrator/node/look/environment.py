"""Verb `prerequisites`: what an engine will find beside the hardware: checkpoint, virtual environment, C library.

What an environment holds is read, never executed or imported: versions by the names of its dist-info folders, and for
the probe the files that show what is installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.node import files
from orchestrator.node.look.reading import SnapshotReader
from orchestrator.node.os_errors import errno_name
from orchestrator.node.requests import request_of
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest, StackQuestion
from orchestrator.protocol.versions import release

CONFIG = "config.json"
MOST_BYTES = 1 << 20
ENGINE = "sglang/__init__.py"
"""Lies below the engine's root, wherever that is."""
_BEGINNING = 200


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Reads two small files; nothing is executed."""
    asked = request_of(PrerequisitesRequest, request)
    config, wrong = _text(Path(asked.model_path, CONFIG))
    venv = Path(asked.venv)
    return PrerequisitesAnswer(
        config=config,
        config_error=wrong,
        engine=(venv / "bin" / "python3").exists(),
        engine_python=_python(venv),
        vocabularies=(venv / "vocabularies").is_dir(),
        glibc=_glibc(),
        packages={place: _asked(Path(place), asked.packages) for place in asked.environments},
    ).as_json()


def _asked(venv: Path, packages: Collection[str]) -> dict[str, str]:
    return {name: version for name, version in versions(venv).items() if name in packages}


def _text(path: Path) -> tuple[str | None, str]:
    try:
        with open(files.opened(path), "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        return None, errno_name(error)
    if len(data) > MOST_BYTES:
        return None, "EFBIG"
    return data.decode("utf-8", "replace"), ""


def _python(venv: Path) -> str:
    """The version that `venv` or `virtualenv` wrote down when it made the environment."""
    text, _ = _text(venv / "pyvenv.cfg")
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("version", "version_info"):
            return value.strip()
    return ""


def _glibc() -> str:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def differing(python: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """{package: version found} for each package whose release is another one than wanted.

    python: the environment's interpreter; a package without a dist-info folder can't be judged and is left out.
    Only releases are compared (PEP 440): 0.4.4.post1 and 2.5.1+cu124 are 0.4.4 and 2.5.1, rebuilt.
    """
    installed = versions(Path(python).parent.parent)
    return {
        name: installed[name]
        for name in wanted
        if name in installed and release(installed[name]) != release(wanted[name])
    }


def site_packages(venv: Path) -> list[Path]:
    """Where an environment keeps its packages."""
    return sorted(venv.glob("lib/python3*/site-packages"))


def versions(venv: Path) -> dict[str, str]:
    """{package: version} of everything installed in an environment, names as PyPA normalises them."""
    by_name: dict[str, str] = {}
    for packages in site_packages(venv):
        try:
            names = os.listdir(packages)
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                by_name[_package(name)] = name.removesuffix(".dist-info").partition("-")[2]
    return by_name


def read_stack(asked: StackQuestion, reader: SnapshotReader) -> None:
    """What a look reads of one environment."""
    venv = asked.venv
    reader.link(f"{venv}/bin/python3")
    reader.text(f"{venv}/pyvenv.cfg")
    for python in (name for name in reader.names(f"{venv}/lib") if name.startswith("python3")):
        site = f"{venv}/lib/{python}/site-packages"
        names = reader.names(site)
        for name in names:
            if name.endswith(".dist-info") and _package(name) in asked.packages:
                reader.texts(f"{site}/{name}", ("WHEEL",))
        for root in (site, *_named_by_pth(reader, site, names)):
            if reader.text(f"{root}/{ENGINE}") is not None:
                _engine(reader, root, asked)
                return


def _package(dist_info: str) -> str:
    """The normalised name (PyPA) out of `sglang_kernel-0.4.10.dist-info`."""
    return re.sub(r"[-_.]+", "-", dist_info.partition("-")[0]).lower()


def _named_by_pth(reader: SnapshotReader, site: str, names: list[str]) -> Iterator[str]:
    """Folders of source installs."""
    for name in names:
        if name.endswith(".pth") and name != "distutils-precedence.pth":
            text = reader.text(f"{site}/{name}") or ""
            yield from (line.strip() for line in text.splitlines() if line.startswith("/"))


def _engine(reader: SnapshotReader, root: str, asked: StackQuestion) -> None:
    for file, text in asked.evidence.items():
        if file.endswith(".so"):
            reader.search(f"{root}/{file}", text)
        else:
            _lines(reader, f"{root}/{file}", text)
    tuned = asked.tuned
    moe, device = tuned.moe, tuned.device
    if not device or not tuned.linear:
        return
    moe = moe if moe.startswith("/") else f"{root}/{moe}"
    where = [f"{moe}/{name}" for name in reader.names(moe) if name.startswith("triton_")] if tuned.by_triton else [moe]
    for folder in (f"{root}/{tuned.linear}", *where):
        _configs(reader, folder, device)


def _lines(reader: SnapshotReader, path: str, wanted: str) -> None:
    """Of a source file only the lines with a text, or its beginning where none has it."""
    whole = reader.text(path)
    if whole is not None:
        matching = [line for line in whole.splitlines() if wanted in line]
        reader.files[reader.real(path)] = "\n".join(matching) if matching else whole[:_BEGINNING]


def _configs(reader: SnapshotReader, folder: str, device: str) -> None:
    named = re.compile(rf"[EN]=\d+,[NK]=\d+,device_name={re.escape(device)}(,.*|_down)?\.json")
    reader.texts(folder, (name for name in reader.names(folder) if named.fullmatch(name)))
