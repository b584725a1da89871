"""An older commit of this repository, as another controller has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMMIT = "ef42b14c"
"""Its staged requests are those of tests/recorded/staged/30b3d37e.json."""
RUN = "import sys; from orchestrator.cli.main import main; sys.exit(main())"
"""Runs its command, with its packages first in PYTHONPATH."""
REPOSITORY = Path(__file__).parents[2]


def unpacked(folder: Path) -> bool:
    """Put the commit's files into an existing folder; False where this copy of the repository does not have it."""
    archive = subprocess.run(["git", "archive", COMMIT], cwd=REPOSITORY, capture_output=True, check=False)
    if archive.returncode == 0:
        subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return archive.returncode == 0
