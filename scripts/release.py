"""Writes a release to dist/: wheel and sdist of the product and of the lab, SHA256SUMS, and sbom.cdx.json.

`--check SBOM` compares one with what is installed, and writes nothing.

What git tracks is what is built, whatever else lies in the checkout. The SBOM (CycloneDX 1.5) names what this
environment has of everything that the product installs. The files' times are the commit's, so that the same commit
gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"l40s-deploy": ".", "l40s-deploy-lab": "lab"}
"""Their folders below ROOT."""
_BUILD = """
import os, sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
os.chdir(sys.argv[1])
for builder in (WheelBuilder, SdistBuilder):
    print(next(builder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"])))
"""


def build(project: Path, out: Path) -> list[Path]:
    """Wheel and sdist."""
    head = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    when = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip() or "0"
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(project), str(out)],
        env={**os.environ, "SOURCE_DATE_EPOCH": when}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [Path(line) for line in done.stdout.split("\n") if line.endswith((".whl", ".tar.gz"))]


def installed_with(name: str) -> Iterator[metadata.Distribution]:
    """A distribution and everything that it needs here, each once; extras are not followed."""
    waiting, seen = [name], set[str]()
    while waiting:
        one = metadata.distribution(waiting.pop())
        if one.name.lower() not in seen:
            seen.add(one.name.lower())
            yield one
            needs = map(Requirement, one.requires or ())
            waiting += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]


def sbom(name: str) -> dict[str, Any]:
    """CycloneDX: the product as the subject, what it needs as components."""

    def component(one: metadata.Distribution) -> dict[str, Any]:
        said = one.metadata["License-Expression"] or one.metadata["License"] or ""
        short = {"licenses": [{"license": {"name": said}}]} if said and "\n" not in said else {}
        key = one.name.lower().replace("_", "-")
        return {
            "type": "library",
            "name": key,
            "version": one.version,
            "purl": f"pkg:pypi/{key}@{one.version}",
            **short,
        }

    subject, *parts = map(component, installed_with(name))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**subject, "type": "application"}},
        "components": sorted(parts, key=lambda part: str(part["name"])),
    }


def differences(bill: Mapping[str, Any], name: str = "l40s-deploy") -> list[str]:
    """Between an SBOM and what is installed here, in words: another version, none, or a part that it does not name."""
    named = {str(part["name"]): str(part["version"]) for part in bill["components"]}
    named |= {name: str(bill["metadata"]["component"]["version"])}
    here = {one.name.lower().replace("_", "-"): one.version for one in installed_with(name)}
    return [
        f"{part}: {named.get(part, 'not named')}, installed {here.get(part, 'not')}"
        for part in sorted(named.keys() | here.keys())
        if named.get(part) != here.get(part)
    ]


def tracked(into: Path) -> Path:
    """A copy of what git tracks, as it is in the checkout; the sources themselves where they are no checkout.

    Raises CalledProcessError where git can't list a checkout's files.
    """
    if not (ROOT / ".git").exists():
        return ROOT
    listing = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    names = [name for name in listed if name and (ROOT / name).is_file()]
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, into / name, follow_symlinks=False)
    return into


def release(out: Path) -> list[Path]:
    """Everything, sums last."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        tree = tracked(Path(made))
        files = [file for folder in PROJECTS.values() for file in build(tree / folder, out)]
    bill = out / "sbom.cdx.json"
    bill.write_text(json.dumps(sbom("l40s-deploy"), indent=1) + "\n")
    files.append(bill)
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    return [*files, sums]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", type=Path, metavar="SBOM", help="compare it with what is installed; write nothing")
    args = parser.parse_args()
    if args.check:
        different = differences(json.loads(args.check.read_text()))
        sys.stdout.write("".join(f"{line}\n" for line in different))
        sys.exit(bool(different))
    for file in release(args.out.resolve()):
        sys.stdout.write(f"{file}\n")
