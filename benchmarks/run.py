"""All benchmarks, one after the other; each prints ratios against a peer in the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for script in (
    "status.py",
    "up.py",
    "death.py",
    "doctor.py",
    "checkpoint.py",
    "push.py",
    "prepare.py",
    "latency.py",
    "why.py",
):
    print(f"== {script}", flush=True)
    subprocess.run([sys.executable, str(Path(__file__).with_name(script))], check=True)
