"""Small hand-made wheels, and a stack of them: what `stack build` packs and `prepare` installs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

PACKAGES: Mapping[str, str] = {"l40s-probe.one": "1.0", "l40s_probe_two": "2.0+cpu"}
"""Names in two spellings that mean the same to pip, and a local version like that of torch's CPU build."""


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str] = MappingProxyType({})) -> Path:
    """A wheel with one module that contains its version. files: further ones, by their path in site-packages."""
    plain = name.replace("-", "_").replace(".", "_")
    info = f"{plain}-{version}.dist-info"
    path = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{plain}.py", f"VERSION = {version!r}\n")
        for path_inside, text in files.items():
            archive.writestr(path_inside, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        named = (f"{plain}.py", *files, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in named))
    return path


def small_stack(folder: Path, python: str) -> Path:
    """A stack of these wheels: `small.yml`, `small.lock`, and the wheels in `wheels/`."""
    (folder / "wheels").mkdir(parents=True)
    for name, version in PACKAGES.items():
        wheel(folder / "wheels", name, version)
    stack = folder / "small.yml"
    stack.write_text(
        f'name: small\nsource: made by hand\ndialect: sglang-0.5\nengine_version: 0.5.23\npython: "{python}"\n'
    )
    (folder / "small.lock").write_text(
        "# two packages\n" + "".join(f"{name}=={version}\n" for name, version in PACKAGES.items())
    )
    return stack
