"""`make demo` uses a lab of its own, whatever other labs run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "demo.sh"
PROGRAM = """#!/bin/sh
echo "${L40S_INVENTORY:-none} $*" >>"$CALLS"
case "$*" in
  "lab status"*) echo '{"inventory": "/labs/demo/inventory.yml"}' ;;
  "status --json") echo '{"gangs": [{"service": {"url": "http://10.0.0.1:8000"}}]}' ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for place, text in ((".venv/bin/l40s-deploy", PROGRAM), ("scripts/setup.sh", "#!/bin/sh\n")):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def calls(clone: Path, *words: str) -> tuple[list[str], str]:
    fake_sudo = clone / "sudo"
    fake_sudo.write_text("#!/bin/sh\n")
    fake_sudo.chmod(0o755)
    env = {**os.environ, "CALLS": str(clone / "calls"), "PATH": f"{clone}:{os.environ['PATH']}"}
    env.pop("L40S_INVENTORY", None)
    ran = subprocess.run(
        ["bash", str(clone / "scripts/demo.sh"), *words],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return (clone / "calls").read_text().splitlines(), ran.stdout


def test_it_starts_and_names_its_own_lab(clone: Path) -> None:
    typed, shown = calls(clone)
    ours = "/labs/demo/inventory.yml"
    assert typed[:2] == ["none lab up --name demo", "none lab status --name demo --json"]
    assert f"{ours} up --model DeepSeek-V3-0324-Block64x64" in typed
    assert f"export L40S_INVENTORY={ours}" in shown and "http://10.0.0.1:8000" in shown


def test_its_end_is_that_of_its_own_lab(clone: Path) -> None:
    typed, _ = calls(clone, "down")
    assert "/labs/demo/inventory.yml down --all" in typed
    assert typed[-1].endswith(" lab down --name demo")
