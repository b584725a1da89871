"""An installed wheel works from any directory: templates, playbooks and profiles travel inside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    code = (
        "import os, sys; os.chdir(sys.argv[1])\n"
        "from hatchling.builders.wheel import WheelBuilder\n"
        "print(next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(REPOSITORY), str(out)], check=True, capture_output=True, text=True, timeout=60
    )
    return Path(done.stdout.strip().splitlines()[-1])


def test_the_wheel_carries_the_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "playbooks", "inventory"):
        for file in (REPOSITORY / folder).rglob("*"):
            if file.is_file() and file.parent.name != "__pycache__":  # of tests that import a template
                assert f"orchestrator/_data/{file.relative_to(REPOSITORY)}" in names


def test_an_installed_wheel_works_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import sys; from orchestrator.loading import resources, profiles; import orchestrator\n"
        "assert orchestrator.__file__.startswith(sys.argv[1]), orchestrator.__file__\n"
        "assert '_data' in str(resources.data_dir('templates'))\n"
        "print('\\n'.join(profiles.profile_names()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "DeepSeek-V3-0324-Block64x64" in done.stdout.splitlines()
