"""An installed wheel works from any directory: templates, playbooks and profiles travel inside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from orchestrator import __version__

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(REPOSITORY, tmp_path_factory.mktemp("wheel"))


def built(project: Path, out: Path) -> Path:
    code = (
        "import os, sys; os.chdir(sys.argv[1])\n"
        "from hatchling.builders.wheel import WheelBuilder\n"
        "print(next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(project), str(out)], check=True, capture_output=True, text=True, timeout=60
    )
    return Path(done.stdout.strip().splitlines()[-1])


def test_the_wheel_carries_the_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "playbooks", "inventory", "examples"):
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


def test_the_product_has_no_lab_in_it_and_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    """Its wheel in an empty place: no emulator, no stand-in, no C source; with the lab's wheel beside it, the verb."""
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "l40s_lab" in name or name.endswith(".c")]
    site, others = tmp_path / "site", tmp_path / "others"
    zipfile.ZipFile(wheel).extractall(site)
    others.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "l40s" not in package.name:
            (others / package.name).symlink_to(package)

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from orchestrator.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-S", "-c", code, *words],
            env={**os.environ, "PYTHONPATH": f"{site}:{others}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    shown = typed("doctor", "--example", "articles")
    assert shown.returncode == 3 and "12 slow" in shown.stdout
    assert "\n  lab " not in typed("--help").stdout
    refused = typed("lab", "up")
    assert refused.returncode == 2 and f"pip install l40s-deploy-lab=={__version__}" in refused.stderr
    zipfile.ZipFile(built(REPOSITORY / "lab", tmp_path)).extractall(site)
    assert "\n  lab " in typed("--help").stdout
    assert "gpu-lost" in typed("lab", "faults").stdout


def test_the_lab_is_pinned_to_the_product() -> None:
    own, lab = ((REPOSITORY / folder / "pyproject.toml").read_text() for folder in ("", "lab"))
    assert f'version = "{__version__}"' in own and f'version = "{__version__}"' in lab
    assert f'dependencies = ["l40s-deploy=={__version__}"]' in lab
