"""Which versions a virtual environment holds, by the names of its dist-info folders. Nothing is executed."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


def differing(python: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """{package: version found} for each package whose release is another one than wanted.

    python: the environment's interpreter; a package without a dist-info folder can't be judged and is left out.
    Only releases are compared (PEP 440): 0.4.4.post1 and 2.5.1+cu124 are 0.4.4 and 2.5.1, rebuilt.
    """
    found = versions(pathlib.Path(python).parent.parent)
    return {name: found[name] for name in wanted if name in found and _release(found[name]) != _release(wanted[name])}


def site_packages(venv: pathlib.Path) -> list[pathlib.Path]:
    """Where an environment keeps its packages."""
    return sorted(venv.glob("lib/python3*/site-packages"))


def versions(venv: pathlib.Path) -> dict[str, str]:
    """{package: version} of everything installed in an environment, names as PyPA normalises them."""
    found: dict[str, str] = {}
    for packages in site_packages(venv):
        try:
            names = os.listdir(packages)
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                found[re.sub(r"[-_.]+", "-", package).lower()] = version
    return found


def _release(version: str) -> tuple[int, ...]:
    """(0, 5, 23); trailing zeros say nothing."""
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match.group(1).split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
