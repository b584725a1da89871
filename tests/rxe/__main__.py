"""`python -m tests.rxe`: RDMA's verbs for real, by soft-RoCE in QEMU machines. Needs root, Debian, and 2 GB of memory.

Builds the machines' disk once, runs test_rdma.py in a network namespace of its own, and writes its row of
docs/proven.yml if all of it passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rxe import machines
from tests.support import proven


def main() -> int:
    if obstacle := machines.obstacle() or ("" if os.geteuid() == 0 else "run it as root"):
        sys.exit(f"no machines here: {obstacle}")
    machines.build()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        test = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "rxe", str(Path(__file__).parent)]
        environment = {**os.environ, "RXE_FIGURES": str(figures)}
        code = subprocess.run(["unshare", "--net", *test], env=environment, check=False).returncode
        if code == 0:
            seen = json.loads(figures.read_text())
            told = f"{seen['ports']} ports as ibv_devinfo, {seen['pairs']} pairs by perftest"
            proven.record("rdma", told, "make rxe")
    return code


if __name__ == "__main__":
    sys.exit(main())
