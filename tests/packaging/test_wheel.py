"""An installed wheel works from any directory: templates, playbooks and profiles travel inside it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator import __version__
from orchestrator.cli.main import parser_of

REPOSITORY = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("release", REPOSITORY / "scripts" / "release.py")
assert _spec and _spec.loader
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout as this one is now, which scripts/release.py builds: nobody changes its files between two builds."""
    copy = tmp_path_factory.mktemp("checkout")
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", str(REPOSITORY), "."], cwd=copy, check=True)
    release.tracked(copy)
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "ROOT", copy)
        yield copy


@pytest.fixture(scope="module")
def released(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    release.release(out)
    return out


@pytest.fixture
def wheel(released: Path) -> Path:
    return released / f"l40s_deploy-{__version__}-py3-none-any.whl"


def test_a_release_has_sums_and_a_bill_of_what_it_installs(released: Path) -> None:
    names = {f"l40s_deploy{lab}-{__version__}{end}" for lab in ("", "_lab") for end in ("-py3-none-any.whl", ".tar.gz")}
    assert {file.name for file in released.iterdir()} == {*names, "sbom.cdx.json", "SHA256SUMS"}
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=released, capture_output=True, text=True, check=True)
    assert done.stdout.count(": OK") == 5
    bill = json.loads((released / "sbom.cdx.json").read_text())
    parts = {part["name"] for part in bill["components"]}
    assert bill["metadata"]["component"]["version"] == __version__
    assert {"ansible-core", "paramiko", "cryptography", "cffi"} <= parts and not {"pytest", "mypy", "ruff"} & parts


def test_the_bill_is_what_is_installed_and_another_one_is_found(released: Path) -> None:
    bill = json.loads((released / "sbom.cdx.json").read_text())
    assert release.differences(bill) == []
    gone = next(part for part in bill["components"] if part["name"] == "paramiko")
    gone |= {"version": "0.1"}
    bill["components"] = [part for part in bill["components"] if part["name"] != "cffi"] + [
        {"name": "left-over", "version": "1"}
    ]
    told = release.differences(bill)
    assert [line.partition(":")[0] for line in told] == ["cffi", "left-over", "paramiko"]
    assert "not named, installed " in told[0] and told[1] == "left-over: 1, installed not"


def test_the_sdist_builds_the_same_wheel(released: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(released / f"l40s_deploy-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    again = next(file for file in release.build(next(tmp_path.iterdir()), tmp_path / "out") if file.suffix == ".whl")

    def sums(path: Path) -> dict[str, int]:
        return {one.filename: one.CRC for one in zipfile.ZipFile(path).infolist()}

    assert sums(again) == sums(wheel)
    said = zipfile.ZipFile(wheel).read(f"l40s_deploy-{__version__}.dist-info/METADATA").decode()
    for line in (
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Classifier: Development Status :: 4 - Beta",
    ):
        assert f"\n{line}\n" in said


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
    assert shown.returncode == 3 and "3 slow (NIC-NOT-UNDER-SWITCH" in shown.stdout
    assert "\n  lab " not in typed("--help").stdout
    refused = typed("lab", "up")
    assert refused.returncode == 2 and f"pip install l40s-deploy-lab=={__version__}" in refused.stderr
    zipfile.ZipFile(wheel.with_name(f"l40s_deploy_lab-{__version__}-py3-none-any.whl")).extractall(site)
    assert "\n  lab " in typed("--help").stdout
    assert "gpu-lost" in typed("lab", "faults").stdout


def test_the_lab_is_pinned_to_the_product() -> None:
    own, lab = ((REPOSITORY / folder / "pyproject.toml").read_text() for folder in ("", "lab"))
    assert f'version = "{__version__}"' in own and f'version = "{__version__}"' in lab
    assert f'dependencies = ["l40s-deploy=={__version__}"]' in lab


@pytest.mark.parametrize(
    "form", sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda one: one.stem
)
def test_issue_forms_ask_with_commands_that_exist(form: Path) -> None:
    asked = yaml.safe_load(form.read_text())
    parts = asked.get("body", [])
    assert len({part["id"] for part in parts}) == len(parts)
    commands = re.findall(r"`l40s-deploy ([^`]+)`", form.read_text())
    for words in map(str.split, commands):
        parser, _ = parser_of(words[0])
        _, unknown = parser.parse_known_args([word.removesuffix("...") for word in words])
        assert unknown == []
    wanted = {"failure": "support-bundle", "finding": "discover --redact", "certificate": "certify"}.get(form.stem, "")
    assert any(command.startswith(wanted) for command in commands) == bool(wanted)


HELP = """
import contextlib, io, sys
from orchestrator.cli import main
from orchestrator.cli.main import verbs_of
verbs = verbs_of(main.parser_of(None)[0])
assert main.__file__.startswith(sys.argv[1]) and sys.argv[2] not in verbs and {"up", "restart", "guard"} <= verbs.keys()
for name in verbs:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main.main([name, "--help"])
    assert out.getvalue().startswith(f"usage: l40s-deploy {name}"), out.getvalue()
"""
AN_UP = "tests/unit/gang/steps/test_up.py::test_another_id_for_the_same_settings_changes_nothing"


@pytest.mark.processes
@pytest.mark.turns
@pytest.mark.parametrize("rooms", [("golden", "nettest"), ("golden", "nettest", "monitoring", "tuning")])
def test_the_core_stands_without_rooms(wheel: Path, tmp_path: Path, rooms: tuple[str, ...]) -> None:
    """Every verb that is left has its help, plans are the same, and `up` brings a gang up."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for room in rooms:
        shutil.rmtree(site / "orchestrator" / room)
    for words in (["-c", HELP, site, rooms[0]], ["-m", "pytest", "-q", "-n", "0", "tests/golden/test_plans.py", AN_UP]):
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": str(site)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_a_second_build_has_the_same_digests(released: Path, checkout: Path, tmp_path: Path) -> None:
    """Whatever else lies in the checkout."""
    (checkout / "tests" / "packaging" / "stray.txt").write_text("somebody's own")
    release.release(tmp_path / "again")
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (released / "SHA256SUMS").read_text()


def test_a_checkout_whose_files_git_can_not_list_is_not_built(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be built with whatever lies there."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(subprocess.CalledProcessError):
        release.tracked(tmp_path / "tree")


def test_an_unpacked_sdist_is_built_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.tracked(tmp_path / "tree") == tmp_path
