"""`make audit`: known vulnerabilities of what the product installs and of what our stacks' locks pin, by pip-audit.

Exit 0 with none but the accepted ones of audit.yml, each until its date; 1 with others. Without pip-audit, or where no
database of vulnerabilities answers, it says that nothing is known, and ends with 0, or with 1 under --must.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from release import ROOT, installed_with

from orchestrator.model import packages

ACCEPTED = ROOT / "scripts" / "audit.yml"
LONGEST_D = 184
"""Of an exception: half a year, then somebody looks again."""
PATIENCE_S = 120
"""For one list of packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A known vulnerability that is not mended yet. id: PyPI's, GitHub's or CVE's"""

    id: str
    package: str
    why: str
    until: datetime.date


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A vulnerability of one pinned package. ids: all its names"""

    package: str
    version: str
    ids: tuple[str, ...]
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {' '.join(self.ids)}, fixed in {' '.join(self.fixed) or 'no release'}"


def accepted(path: Path = ACCEPTED) -> tuple[Accepted, ...]:
    """Raises ValueError for an entry without a reason or a date, or with one too far away."""
    entries = tuple(Accepted(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or ())
    for entry in entries:
        if not entry.why.strip() or not isinstance(entry.until, datetime.date):
            raise ValueError(f"{entry.id}: an exception has a reason and a date")
        if entry.until > datetime.date.today() + datetime.timedelta(days=LONGEST_D):
            raise ValueError(f"{entry.id}: until {entry.until} is more than {LONGEST_D} days away")
    return entries


def pins() -> dict[str, str]:
    """Texts of NAME==VERSION lines, by what pins them: this environment, and every stack's lock."""
    here = {one.name: one.version for name in ("l40s-deploy", "l40s-deploy-lab") for one in installed_with(name)}
    ours = "".join(f"{name}=={version}\n" for name, version in here.items() if not name.startswith("l40s"))
    locks = sorted((ROOT / "inventory" / "stacks").glob("*.lock"))
    return {"the product": ours, **{lock.name: pinned(lock.read_text()) for lock in locks}}


def pinned(lock: str) -> str:
    """Of a lock the names and public versions: a local part (+cu128) is in no database."""
    return "".join(f"{pin['name']}=={pin['version'].partition('+')[0]}\n" for pin in packages.pins(lock))


def read(report: Mapping[str, Any]) -> tuple[int, list[Found]]:
    """Of pip-audit's JSON: how many packages the database knew, and what it says of them."""
    known = [one for one in report["dependencies"] if "skip_reason" not in one]
    return len(known), [
        Found(
            package=one["name"],
            version=one["version"],
            ids=(wrong["id"], *wrong.get("aliases", ())),
            fixed=tuple(wrong.get("fix_versions", ())),
        )
        for one in known
        for wrong in one["vulns"]
    ]


def unaccepted(found: Iterable[Found], entries: Sequence[Accepted], today: datetime.date) -> list[Found]:
    """What no entry accepts today."""
    valid = {(entry.package.lower(), entry.id) for entry in entries if entry.until >= today}
    return [one for one in found if not any((one.package.lower(), name) in valid for name in one.ids)]


def ask(requirements: str) -> Mapping[str, Any] | str:
    """pip-audit's report, or why there is none."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--requirement", file.name]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer within {PATIENCE_S} s"
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--must", action="store_true", help="fail where nothing can be known")
    args = parser.parse_args(argv)
    entries, today, code = accepted(), datetime.date.today(), 0
    report: Mapping[str, Any] | str = {}
    for who, requirements in pins().items():
        if not isinstance(report, str):  # what does not answer once is not asked again
            report = ask(requirements)
        count, found = (0, []) if isinstance(report, str) else read(report)
        wanted = requirements.count("\n")
        if not count:
            why = report if isinstance(report, str) else "the index has no vulnerability data"
            sys.stdout.write(f"{who}: not audited: {why[:200]}\n")
            code = max(code, int(args.must))
            continue
        left = unaccepted(found, entries, today)
        sys.stdout.write(
            f"{who}: {count} of {wanted} packages known, {len(found)} findings, {len(left)} not accepted\n"
        )
        sys.stdout.write("".join(f"  {one}\n" for one in left))
        code = max(code, int(bool(left)))
    return code


if __name__ == "__main__":
    sys.exit(main())
