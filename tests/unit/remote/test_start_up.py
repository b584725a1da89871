"""What every command pays at its start."""

from __future__ import annotations

import subprocess
import sys


def test_ssh_does_not_bring_invoke_along() -> None:
    code = "import sys, orchestrator.remote.ssh_session; print('invoke' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "False"


def test_json_needs_no_rich() -> None:
    code = "import sys, orchestrator.cli.main, orchestrator.cli.status; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "False"
